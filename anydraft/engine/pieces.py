"""The text of a stream, piece by piece with where each came from."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass

from anydraft.engine.outputs import Delta
from anydraft.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class Piece:
    """The text that one token added, and the token's source (see ``GenerationResult.sources``)."""

    text: str
    source: str


class Pieces:
    """Splits the text of one request's deltas by token.

    A character that several tokens spell belongs to the token that completes it. The pieces of a delta are
    exactly its text, also where that was held back or cut at a stop string.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._coming: deque[tuple[int, str]] = deque()
        """(characters, source) of tokens whose text has not come out yet."""
        self._last_source = "target"

    def push(self, delta: Delta) -> tuple[Piece, ...]:
        """The pieces of the delta's text; no piece is empty."""
        for token_id, source in zip(delta.token_ids, delta.sources, strict=True):
            self._last_source = source
            length = len(self._decoder.decode(self._vocabulary.bytes_of([token_id])))
            if length:
                self._coming.append((length, source))
        pieces, at = [], 0
        while at < len(delta.text):
            length, source = (
                self._coming.popleft() if self._coming else (len(delta.text) - at, self._last_source)
            )
            text = delta.text[at : at + length]
            if len(text) < length:
                self._coming.appendleft((length - len(text), source))
            pieces.append(Piece(text, source))
            at += length
        return tuple(pieces)
