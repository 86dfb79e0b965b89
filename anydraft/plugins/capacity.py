"""A draft whose keys and values have a bound: who gives way when the requests do not all fit."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from anydraft.errors import UsageError
from anydraft.methods.base import Answer, Ask, Drafted, Rollout
from anydraft.models.draft import ModelDraft
from anydraft.vocab.tokenizer import Tokenizer

GIB = 1024**3
LEAST_CONTEXT = 256
"""Tokens; a draft that sees fewer has little to go by, unless more were not asked for."""


def require_room(
    name: str, kv_cache_gib: float, num_tokens: int, max_context: int, token_bytes: float
) -> None:
    """Refuse a cache too small for one request.

    Args:
        name: of the draft.
        num_tokens: that the cache holds.
        max_context: tokens that the draft may see.
        token_bytes: of one token's keys and values.

    Raises:
        UsageError: it holds fewer than :data:`LEAST_CONTEXT` tokens, and fewer than ``max_context``.
    """
    least = min(LEAST_CONTEXT, max_context)
    if num_tokens < least:
        gib = math.ceil(1e4 * least * token_bytes / GIB) / 1e4
        raise UsageError(
            f"kv_cache_gib={kv_cache_gib} holds {num_tokens} tokens of the draft {name}; give at least {gib:.4f}"
        )


class Capacity(Protocol):
    """The room for keys and values."""

    def fits(self, lengths: Sequence[int]) -> bool:
        """Whether rows of so many tokens have room at the same time."""
        ...

    def keep_rows(self, count: int) -> None:
        """Only the first ``count`` rows are in use; what later ones held is free."""
        ...


class BoundedDraft:
    """A :class:`~anydraft.methods.base.DraftBackend` that stays within a capacity.

    Requests that did not ask for the longest time lose their keys and values first (they are read again when
    the request comes back). If all who ask now do not fit together, the longest contexts get no draft in
    this step: the target goes on alone there.

    Args:
        max_context: tokens that a row holds at most; longer contexts are cut by ``draft``.
    """

    def __init__(self, draft: ModelDraft, capacity: Capacity, max_context: int) -> None:
        self._draft = draft
        self._capacity = capacity
        self._max_context = max_context
        self._lengths: dict[Hashable, int] = {}  # by row, those who asked last at the end
        self.num_evictions = 0
        self.num_refusals = 0

    @property
    def tokenizer(self) -> Tokenizer:
        return self._draft.tokenizer

    @property
    def vocab_size(self) -> int:
        return self._draft.vocab_size

    @property
    def num_forwards(self) -> int:
        return self._draft.num_forwards

    @property
    def on_kernels(self) -> bool:
        return self._draft.on_kernels

    @property
    def prefill_time(self) -> float:
        return self._draft.prefill_time

    def __len__(self) -> int:
        """Requests that have keys and values now."""
        return len(self._lengths)

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        answers: dict[Hashable, Answer] = {}
        fitting = dict(asks)
        for key in asks:
            self._lengths[key] = self._need(asks[key], self._lengths.pop(key, 0))
        while not self._capacity.fits(list(self._lengths.values())):
            idle = next((key for key in self._lengths if key not in fitting), None)
            if idle is not None:
                self.num_evictions += 1
                self.release(idle)
                continue
            longest = max(fitting, key=lambda key: self._lengths[key])
            del fitting[longest]
            self.num_refusals += 1
            self.release(longest)
            answers[longest] = Drafted(())
        if fitting:
            answers.update(self._draft.answer(fitting))
        return answers

    def release(self, key: Hashable) -> None:
        if self._lengths.pop(key, None) is not None:
            self._draft.release(key)
            self._capacity.keep_rows(self._draft.num_rows)

    def _need(self, ask: Ask, before: int) -> int:
        assert isinstance(ask, Rollout), "a host's draft answers rollouts only"
        return max(min(len(ask.context) + ask.max_tokens, self._max_context), before)
