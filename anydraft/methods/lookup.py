"""Lookup: copy what followed the last time the same tokens stood here. No draft model.

(Saxena, "Prompt Lookup Decoding", 2023; LZ77's self-overlapping copy for periodic text.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from anydraft.errors import UsageError
from anydraft.methods.base import EMPTY, Prompt, Proposal, ProposalGenerator

_MAX_CANDIDATES = 32


class NgramIndex:
    """Where each n-gram of a growing sequence occurred, as chains from the newest to the oldest.

    Appending a token and asking for the longest match cost the same however long the sequence is.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self.ids: list[int] = []
        self._min = min_ngram
        self._max = max_ngram
        self._newest: dict[tuple[int, ...], int] = {}
        self._older = [0]  # by end position: the previous end of the same n-gram, 0 for none

    def append(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self.ids.append(token)
            end = len(self.ids)
            if end < self._min:
                self._older.append(0)
                continue
            key = tuple(self.ids[end - self._min :])
            self._older.append(self._newest.get(key, 0))
            self._newest[key] = end

    def longest_match(self) -> tuple[int, int]:
        """(length, end) of the longest earlier occurrence of the sequence's last tokens, at most
        ``max_ngram`` long, the newest of equally long ones; (0, 0) if none reaches ``min_ngram``."""
        ids, here = self.ids, len(self.ids)
        best = (0, 0)
        end = self._older[here]
        for _ in range(_MAX_CANDIDATES):
            if not end:
                break
            length = self._min
            while length < min(self._max, end) and ids[end - 1 - length] == ids[here - 1 - length]:
                length += 1
            if length > best[0]:
                best = (length, end)
                if length == self._max:
                    break
            end = self._older[end]
        return best


@dataclass(frozen=True)
class Lookup:
    """The method; ``stop_ids`` are the target's end tokens, after which nothing is copied."""

    num_speculative_tokens: int = 10
    min_ngram: int = 2
    max_ngram: int = 8
    stop_ids: Collection[int] = frozenset()

    name = "lookup"

    def __post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise UsageError(
                f"min_ngram={self.min_ngram}, max_ngram={self.max_ngram}: lookup needs 1 <= min <= max."
            )

    def start(self, prompt: Prompt) -> LookupProposer:
        return LookupProposer(self, prompt)


class LookupProposer:
    """One request's index over its prompt and output."""

    def __init__(self, method: Lookup, prompt: Prompt) -> None:
        self._method = method
        self._index = NgramIndex(method.min_ngram, method.max_ngram)
        self._index.append(prompt.target_ids)

    @property
    def match_length(self) -> int:
        """How many of the last tokens occurred before; 0: there is nothing to copy."""
        return self._index.longest_match()[0]

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        copied = self.copy(min(self._method.num_speculative_tokens, max_target_tokens))
        return Proposal(tuple(copied), source="lookup") if copied else EMPTY
        yield  # a generator that asks nothing

    def copy(self, count: int) -> list[int]:
        """At most ``count`` ids that followed the longest match; a copy that reaches the end of the
        sequence goes on in what it has copied, so periodic text is continued for as long as asked."""
        length, end = self._index.longest_match()
        copied: list[int] = []
        if length:
            known = self._index.ids
            for i in range(end, end + count):
                token = known[i] if i < len(known) else copied[i - len(known)]
                copied.append(token)
                if token in self._method.stop_ids:
                    break
        return copied

    def observe(self, token_ids: Sequence[int]) -> None:
        self._index.append(token_ids)
