"""Reader for SentencePiece processors."""

from __future__ import annotations

from typing import Any

from anydraft.vocab.controls import Declared, build_vocabulary, is_filler
from anydraft.vocab.text import checked
from anydraft.vocab.vocabulary import Role, Vocabulary

_NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
"""``ModelProto.normalizer_spec.add_dummy_prefix = false``; appended to a serialized model, it overrides
that one field (protocol buffers merge repeated messages)."""


class SentencePieceTokenizer:
    """Answers the Tokenizer protocol with a ``SentencePieceProcessor``, which is not changed."""

    def __init__(self, processor: Any, declared: Declared) -> None:
        self._start = processor
        self._rest = type(processor)()
        self._rest.LoadFromSerializedProto(processor.serialized_model_proto() + _NO_DUMMY_PREFIX)
        dummy_prefix = processor.encode("a") != self._rest.encode("a")
        self._vocabulary = _vocabulary(processor, declared, dummy_prefix)

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._start.encode(checked(text))
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        ids: list[int] = self._rest.encode(checked(text))
        return ids


def read_sentencepiece(
    processor: Any, declared: Declared | None = None, add_bos: bool | None = None
) -> SentencePieceTokenizer:
    """A :class:`SentencePieceTokenizer`. ``add_bos`` None: yes, if the model has a BOS."""
    given = declared or Declared()
    ids = {
        role: value
        for role, value in (
            (Role.BOS, processor.bos_id()),
            (Role.EOS, processor.eos_id()),
            (Role.PAD, processor.pad_id()),
            (Role.UNK, processor.unk_id()),
        )
        if value >= 0
    } | dict(given.ids)
    bos_id = given.bos_id
    if bos_id is None and add_bos is not False:
        bos_id = ids.get(Role.BOS)
    return SentencePieceTokenizer(processor, Declared(ids, given.stop_ids, bos_id))


def _vocabulary(processor: Any, declared: Declared, dummy_prefix: bool) -> Vocabulary:
    size = processor.get_piece_size()
    tokens: list[bytes | None] = [None] * size
    surfaces = {}
    byte_fallback = []
    for i, piece in enumerate(processor.id_to_piece(list(range(size)))):
        if processor.is_byte(i):
            tokens[i] = bytes([int(piece[3:5], 16)])
            byte_fallback.append(i)
        elif is_filler(piece) or processor.is_unused(i):
            continue
        elif processor.is_control(i) or processor.is_unknown(i) or i in declared.ids.values():
            surfaces[i] = piece
        else:
            tokens[i] = piece.replace("▁", " ").encode()
    return build_vocabulary(tokens, surfaces, declared, byte_fallback, dummy_prefix=dummy_prefix)
