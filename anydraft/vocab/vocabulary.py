"""A vocabulary as bytes: what each token id stands for, exactly.

Never built by ``decode([id])``, which cleans up and strips; the readers in
:mod:`anydraft.vocab.readers` take the bytes from the tokenizer's own tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Role(StrEnum):
    """What a control token is for. Two vocabularies' control tokens meet by role, never by bytes."""

    BOS = "bos"
    EOS = "eos"
    """Ends a text or a turn. Every control token in ``Vocabulary.stop_ids`` has this role (a generation
    config may name a text token as well, which keeps its bytes)."""
    PAD = "pad"
    UNK = "unk"
    OTHER = "other"


@dataclass(frozen=True)
class Control:
    """A control token: it stands for no text."""

    id: int
    role: Role
    surface: str
    """How the tokenizer writes it, e.g. ``<|im_end|>``."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token id -> bytes.

    Attributes:
        tokens: ``tokens[i]`` is the bytes of id ``i``; None for a control token, an unused id or a
            padded row. Its length is the number of ids the tokenizer knows; rows of the model's
            embedding beyond it are padding and never proposed.
        controls: the control tokens by id.
        stop_ids: ids that end a generation (the tokenizer's end token, the end-of-turn tokens and those
            that the model's generation config names).
        bos_id: the id put before every text, or None when this tokenizer adds none.
        eos_id: the end token that the tokenizer itself declares, a member of ``stop_ids``, or None.
        byte_fallback: ids that stand for one byte only because a character had no piece (``<0x41>``).
            An ordinary piece with the same bytes wins over them.
        dummy_prefix: the first text token of a document begins with a space that the text has not
            (SentencePiece's dummy prefix).
    """

    tokens: tuple[bytes | None, ...]
    controls: dict[int, Control] = field(default_factory=dict)
    stop_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    eos_id: int | None = None
    byte_fallback: frozenset[int] = frozenset()
    dummy_prefix: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def text_items(self) -> Iterator[tuple[int, bytes]]:
        """(id, bytes) of every token that stands for text."""
        return ((i, b) for i, b in enumerate(self.tokens) if b)

    def bytes_of(self, ids: list[int] | tuple[int, ...]) -> bytes:
        """The text of ``ids`` as bytes; control tokens, unused and padded ids give nothing."""
        n = len(self.tokens)
        return b"".join(self.tokens[i] or b"" for i in ids if 0 <= i < n)

    @cached_property
    def byte_ids(self) -> tuple[int | None, ...]:
        """For each of the 256 bytes the id of the token that is just it, or None."""
        found: list[int | None] = [None] * 256
        for i, data in self.text_items():
            if len(data) == 1 and (found[data[0]] is None or i not in self.byte_fallback):
                if found[data[0]] is None or found[data[0]] in self.byte_fallback:
                    found[data[0]] = i
        return tuple(found)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the contents (bytes, roles, stop ids): equal vocabularies have equal ones."""
        h = hashlib.sha256()
        for i, data in enumerate(self.tokens):
            if data is None:
                c = self.controls.get(i)
                h.update(b"\x00" + (f"{c.role}:{c.surface}".encode() if c else b""))
            else:
                h.update(b"\x01" + len(data).to_bytes(4, "big") + data)
        rest = (sorted(self.stop_ids), self.bos_id, self.eos_id, sorted(self.byte_fallback))
        h.update(repr((*rest, self.dummy_prefix)).encode())
        return h.hexdigest()
