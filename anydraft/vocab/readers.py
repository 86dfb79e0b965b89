"""From any tokenizer object that is understood to one that answers the Tokenizer protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anydraft.errors import TokenizerError
from anydraft.vocab.controls import Declared
from anydraft.vocab.huggingface import read_huggingface
from anydraft.vocab.sentencepiece import read_sentencepiece
from anydraft.vocab.tiktoken import read_tekken, read_tiktoken
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Role

_WRAPPERS = ("instruct_tokenizer", "tokenizer", "_tokenizer", "_model")
"""Attributes under which other packages keep one of the tokenizers that are understood."""


def read_tokenizer(
    tokenizer: object,
    *,
    stop_ids: Iterable[int] = (),
    roles: Mapping[Role, int] | None = None,
    add_bos: bool | None = None,
) -> Tokenizer:
    """Read the bytes of every token of ``tokenizer`` and wrap it; it is not changed.

    Args:
        tokenizer: a fast tokenizer of Transformers, a ``tokenizers.Tokenizer``, a
            ``sentencepiece.SentencePieceProcessor``, a ``tiktoken.Encoding``, a tokenizer of
            mistral-common, or an object that answers the Tokenizer protocol already.
        stop_ids: the end tokens that the model's generation config names.
        roles: ids of control tokens, over what the tokenizer itself declares.
        add_bos: whether a text starts with the BOS; None: as the tokenizer says.

    Raises:
        TokenizerError: the tokenizer is of another kind, or its tokens have no exact bytes.
    """
    if hasattr(tokenizer, "encode_continuation") and hasattr(tokenizer, "vocabulary"):
        return tokenizer  # type: ignore[return-value]
    declared = Declared(dict(roles or {}), frozenset(stop_ids))
    seen = tokenizer
    for _ in range(4):
        if (read := _reader(seen)) is not None:
            try:
                return read(seen, declared, add_bos)
            except TokenizerError as error:
                raise TokenizerError(f"{_name(tokenizer)}: {error}") from None
        inner = (getattr(seen, name, None) for name in _WRAPPERS)
        seen = next((value for value in inner if value is not None), None)
        if seen is None:
            break
    raise TokenizerError(
        f"{_name(tokenizer)} is no tokenizer whose bytes can be read; expected a fast tokenizer of "
        "Transformers, tokenizers.Tokenizer (from the model's tokenizer.json), SentencePiece, tiktoken or "
        "mistral-common"
    )


def _reader(tokenizer: object) -> Callable[[Any, Declared, bool | None], Any] | None:
    """By the names of the classes, so that no optional package is imported."""
    names = {(c.__module__.partition(".")[0], c.__name__) for c in type(tokenizer).__mro__}
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if (type(backend).__module__.partition(".")[0], type(backend).__name__) == ("tokenizers", "Tokenizer"):
        return read_huggingface
    if ("sentencepiece", "SentencePieceProcessor") in names:
        return read_sentencepiece
    if ("tiktoken", "Encoding") in names:
        return read_tiktoken
    if ("mistral_common", "Tekkenizer") in names:
        return read_tekken
    return None


def _name(tokenizer: object) -> str:
    return f"{type(tokenizer).__module__}.{type(tokenizer).__name__}"
