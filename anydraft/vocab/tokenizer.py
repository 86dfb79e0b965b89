"""What the core needs of a tokenizer: text to ids, and the vocabulary they come from."""

from __future__ import annotations

from typing import Protocol

from anydraft.vocab.vocabulary import Vocabulary


class Tokenizer(Protocol):
    """Text to ids without control tokens.

    ``decode(encode(text))`` need not give the text back (normalisers): that may cost acceptance, never
    correctness.
    """

    @property
    def vocabulary(self) -> Vocabulary: ...

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as the start of a document (a dummy prefix space, if the tokenizer has one).

        No BOS is added, and control tokens written in ``text`` are plain text.
        """
        ...

    def encode_continuation(self, text: str) -> list[int]:
        """Ids of ``text`` as the continuation of other text: no dummy prefix, no BOS."""
        ...
