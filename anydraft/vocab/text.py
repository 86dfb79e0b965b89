"""Text and bytes: what is refused, and how bytes that are no text reach a vocabulary."""

from __future__ import annotations

from anydraft.errors import UsageError
from anydraft.vocab.tokenizer import Tokenizer


def checked(text: str) -> str:
    """``text`` itself, or a refusal if no UTF-8 can carry it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text has a lone surrogate U+{ord(text[error.start]):04X} at index {error.start}, which is "
            "no character; remove it, or decode the input with errors='replace'"
        ) from None
    return text


def incomplete_tail(data: bytes) -> int:
    """Number of bytes at the end (0 to 3) that begin a UTF-8 character without ending it."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < need and _can_begin(data[-back:]) else 0
        if byte < 0x80:
            return 0
    return 0


def _can_begin(data: bytes) -> bool:
    """Whether some continuation makes ``data`` (a lead byte and what follows it) one character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def split_utf8(data: bytes) -> list[tuple[str, bytes]]:
    """``data`` as (valid text, bytes that are none of it) pairs, in order."""
    parts = []
    while data:
        try:
            parts.append((data.decode(), b""))
            break
        except UnicodeDecodeError as error:
            parts.append((data[: error.start].decode(), data[error.start : error.end]))
            data = data[error.end :]
    return parts


def encode_bytes(tokenizer: Tokenizer, data: bytes, *, continuation: bool) -> list[int]:
    """Ids of any bytes: valid UTF-8 by the tokenizer, the others one by one as single-byte tokens.

    A byte for which the vocabulary has no token is left out: that may cost acceptance.
    ``continuation`` says that other text comes before.
    """
    ids: list[int] = []
    byte_ids: tuple[int | None, ...] | None = None
    for text, other in split_utf8(data):
        if text:
            ids += tokenizer.encode_continuation(text) if continuation else tokenizer.encode(text)
        continuation = True
        if other:
            byte_ids = byte_ids or tokenizer.vocabulary.byte_ids
            ids += [i for i in (byte_ids[b] for b in other) if i is not None]
    return ids
