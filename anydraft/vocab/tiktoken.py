"""Readers for tiktoken encodings and for Tekken, which puts its control tokens before one."""

from __future__ import annotations

from typing import Any

from anydraft.vocab.controls import Declared, build_vocabulary, is_filler
from anydraft.vocab.text import checked
from anydraft.vocab.vocabulary import Role, Vocabulary


class TiktokenTokenizer:
    """Answers the Tokenizer protocol with a ``tiktoken.Encoding`` whose ids start at ``first_id``."""

    def __init__(self, encoding: Any, vocabulary: Vocabulary, first_id: int = 0) -> None:
        self._encoding = encoding
        self._vocabulary = vocabulary
        self._first_id = first_id

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._encoding.encode_ordinary(checked(text))
        return [i + self._first_id for i in ids] if self._first_id else ids

    def encode_continuation(self, text: str) -> list[int]:
        return self.encode(text)


def read_tiktoken(
    encoding: Any, declared: Declared | None = None, add_bos: bool | None = None
) -> TiktokenTokenizer:
    """A tokenizer of a ``tiktoken.Encoding``. ``add_bos`` None: no BOS."""
    given = declared or Declared()
    surfaces = {encoding.encode_single_token(s): s for s in encoding.special_tokens_set if not is_filler(s)}
    tokens = _text_tokens(encoding, encoding.n_vocab, 0)
    bos_id = given.ids.get(Role.BOS) if given.bos_id is None and add_bos else given.bos_id
    declared = Declared(given.ids, given.stop_ids, bos_id)
    return TiktokenTokenizer(encoding, build_vocabulary(tokens, surfaces, declared))


def read_tekken(
    tekken: Any, declared: Declared | None = None, add_bos: bool | None = None
) -> TiktokenTokenizer:
    """A tokenizer of a ``mistral_common`` ``Tekkenizer``. ``add_bos`` None: yes."""
    given = declared or Declared()
    shift = tekken.num_special_tokens
    names = {i: tekken.id_to_piece(i) for i in range(shift)}
    ids = {Role.BOS: tekken.bos_id, Role.EOS: tekken.eos_id} | dict(given.ids)
    bos_id = ids[Role.BOS] if given.bos_id is None and add_bos is not False else given.bos_id
    tokens = _text_tokens(tekken._model, tekken.n_words, shift)
    surfaces = {i: s for i, s in names.items() if not is_filler(s)}
    vocabulary = build_vocabulary(tokens, surfaces, Declared(ids, given.stop_ids, bos_id))
    return TiktokenTokenizer(tekken._model, vocabulary, shift)


def _text_tokens(encoding: Any, size: int, first_id: int) -> list[bytes | None]:
    tokens: list[bytes | None] = [None] * size
    for data in encoding.token_byte_values():
        tokens[first_id + encoding.encode_single_token(data)] = data
    return tokens
