"""Tokenizers of a few pieces, longest match first, whose tokens can be counted by hand."""

from __future__ import annotations

from anydraft.vocab.vocabulary import Vocabulary


class Pieces:
    """Answers the Tokenizer protocol; every character of a text must be covered."""

    def __init__(self, *pieces: str) -> None:
        self.vocabulary = Vocabulary(tuple(piece.encode() for piece in pieces))
        self._pieces = sorted(pieces, key=len, reverse=True)
        self._ids = {piece: i for i, piece in enumerate(pieces)}

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            piece = next(p for p in self._pieces if text.startswith(p))
            ids.append(self._ids[piece])
            text = text[len(piece) :]
        return ids

    encode_continuation = encode
