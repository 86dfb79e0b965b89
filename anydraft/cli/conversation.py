"""A chat with an engine: what was said, by which method, at what cost. No terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from anydraft.engine import Delta, Engine, RequestStats
from anydraft.engine.pieces import Piece, Pieces
from anydraft.engine.prompts import require_chat_template
from anydraft.errors import UsageError
from anydraft.rules.params import SamplingParams


@dataclass(frozen=True)
class Turn:
    """One answer. ``finish_reason`` is "interrupted" where the user ended it."""

    num_tokens: int
    seconds: float
    finish_reason: str
    stats: RequestStats

    def to_dict(self) -> dict[str, Any]:
        return {
            "completion_tokens": self.num_tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.num_tokens / self.seconds if self.seconds else 0.0,
            "finish_reason": self.finish_reason,
            "metrics": {"speculative_decoding": self.stats.to_dict()},
        }


class Conversation:
    """Questions and answers so far; each answer sees all of them.

    Args:
        params: of every answer; a seed is counted up from answer to answer.
        system: the system message, or None.

    Raises:
        UsageError: a target without a chat template.
    """

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None = None) -> None:
        require_chat_template(engine.pair.target, "use anydraft run --raw")
        self._engine = engine
        self._params = params
        self._system = system
        self._method: str | None = None
        self._count: int | None = None
        self.messages: list[dict[str, str]] = []
        self.turns: list[Turn] = []
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []
        self.turns = []

    @property
    def method(self) -> str:
        """In use, with its number of drafts if one was chosen."""
        name = self._method or self._engine.method
        return name if self._count is None else f"{name} {self._count}"

    def use_method(self, name: str, num_speculative_tokens: int | None = None) -> None:
        """From the next answer on.

        Raises:
            UsageError, PairError: it is unknown or does not work with this pair; the old one stays.
        """
        self._engine.choose_method(name, num_speculative_tokens)
        self._method, self._count = name, num_speculative_tokens

    def ask(self, text: str, interrupted: Callable[[], bool]) -> Iterator[tuple[Piece, ...]]:
        """The pieces of the answer, step by step, until it ends or ``interrupted`` says so after a step.

        What an interrupted answer said stays part of the conversation; a question that could not be answered does
        not.

        Raises:
            UsageError: the conversation does not fit into the target's context.
        """
        seed = self._params.seed
        params = self._params if seed is None else replace(self._params, seed=seed + len(self.turns))
        messages = [*self.messages, {"role": "user", "content": text}]
        pieces = Pieces(self._engine.pair.target_vocabulary)
        said, num_tokens = "", 0
        started = time.perf_counter()
        last: Delta | None = None
        stream = self._engine.stream(
            messages=messages,
            sampling_params=params,
            method=self._method,
            num_speculative_tokens=self._count,
        )
        with closing(stream):  # type: ignore[type-var]
            for last in stream:
                said += last.text
                num_tokens += len(last.token_ids)
                yield pieces.push(last)
                if interrupted():
                    break
        assert last is not None
        if last.result is not None and last.result.error is not None:
            raise UsageError(last.result.error)
        reason = last.result.finish_reason if last.result is not None else "interrupted"
        self.messages = [*messages, {"role": "assistant", "content": said}]
        self.turns.append(Turn(num_tokens, time.perf_counter() - started, reason, last.stats))

    def total(self) -> Turn:
        """All answers as one."""
        stats = RequestStats(method=self.method)
        for turn in self.turns:
            stats.add(turn.stats)
        return Turn(
            sum(turn.num_tokens for turn in self.turns), sum(turn.seconds for turn in self.turns), "", stats
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        pair = self._engine.pair
        return {
            "target": pair.target.name,
            "draft": pair.draft.name if pair.draft is not None else None,
            "messages": self.messages,
            "turns": [turn.to_dict() for turn in self.turns],
        }

    @property
    def methods(self) -> tuple[str, ...]:
        return self._engine.methods


def describe(turn: Turn) -> str:
    """A line of statistics."""
    stats = turn.stats
    rate = turn.num_tokens / turn.seconds if turn.seconds else 0.0
    speedup = stats.predicted_speedup
    return (
        f"[{stats.method}] {turn.num_tokens} tokens in {turn.seconds:.2f} s, {rate:.2f} tok/s; acceptance length "
        f"{stats.acceptance_length:.2f}"
        + (f", {speedup:.2f}x the target alone (predicted)" if speedup is not None else "")
        + (f"; {turn.finish_reason}" if turn.finish_reason in ("interrupted", "length") else "")
    )
