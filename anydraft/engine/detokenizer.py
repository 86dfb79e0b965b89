"""Target ids to text, as they come; and where a stop string ends it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from anydraft.vocab.vocabulary import Vocabulary


class Detokenizer:
    """The text of one request's output.

    Ids give bytes, bytes give text once their characters are complete; invalid bytes become U+FFFD. Text
    that might be the beginning of a stop string is held back from ``take`` until it is decided.
    """

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._longest = max((len(s) for s in self._stop), default=0)
        self._taken = 0
        self._unchecked = 0
        self.text = ""

    def push(self, token_id: int, *, check: bool = True) -> str | None:
        """Add one id; the stop string that it completed, if any (the text then ends there).

        Without ``check`` the text so far is never part of a stop string (``min_tokens``).
        """
        old = len(self.text)
        self.text += self._decoder.decode(self._vocabulary.bytes_of([token_id]))
        if not check:
            self._unchecked = len(self.text)
            return None
        return self._cut_at_stop(old)

    def finish(self) -> str | None:
        """No more ids: an incomplete character becomes U+FFFD. Returns like :meth:`push`."""
        old = len(self.text)
        self.text += self._decoder.decode(b"", final=True)
        return self._cut_at_stop(old)

    def take(self, *, final: bool = False) -> str:
        """The text that is certain and was not taken before."""
        end = len(self.text) if final else max(self._taken, len(self.text) - self._held_back())
        piece, self._taken = self.text[self._taken : end], end
        return piece

    def _cut_at_stop(self, old: int) -> str | None:
        if not self._stop or len(self.text) == old:
            return None
        start = max(self._unchecked, old - self._longest + 1)
        found = [(at, s) for s in self._stop if (at := self.text.find(s, start)) >= 0]
        if not found:
            return None
        at, stop = min(found)
        self.text = self.text[: at + len(stop) if self._include_stop else at]
        return stop

    def _held_back(self) -> int:
        for length in range(min(self._longest - 1, len(self.text) - self._unchecked), 0, -1):
            tail = self.text[-length:]
            if any(s.startswith(tail) for s in self._stop):
                return length
        return 0
