"""What forwards of a pair cost, and the speed that follows. Used by sampling.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from anydraft.methods.base import DraftBackend, Expand
from anydraft.methods.costs import CostModel, DraftWork
from anydraft.models.select import Runner

MOST_TOKENS = 8
_CONTEXT = 100
_REPEATS = 7


@dataclass(frozen=True)
class Times:
    """Seconds of forwards on a short context: the target's over so many tokens, the draft's over so many rows."""

    target: dict[int, float]
    draft: dict[int, float]

    def drafting(self, rows: float, forwards: float) -> float:
        """Of one drafted token that takes so many rows in so many forwards."""
        few, many = min(self.draft), max(self.draft)
        slope = max(0.0, (self.draft[many] - self.draft[few]) / (many - few))
        return forwards * (self.draft[few] - slope * few) + rows * slope

    def best(
        self, acceptance: float, rows: float, forwards: float, ratio: float | None = None
    ) -> tuple[int, float]:
        """Tokens to draft and the speed over the target alone, if each is accepted like the first one.

        ``ratio``: as if the target's forward took so many draft forwards.
        """
        costs = CostModel()
        scale = 1.0 if ratio is None else ratio * self.draft[1] / self.target[1]
        for count, seconds in self.target.items():
            costs.observe_target(count, scale * seconds)
        costs.observe_draft(1, self.drafting(rows, forwards))
        return costs.best_length(MOST_TOKENS, acceptance, 1, DraftWork())


def forward_times(target: Runner, draft: DraftBackend) -> Times:
    """Medians over a few forwards each; the two must be idle."""
    ids = [1 + i % 50 for i in range(_CONTEXT)]
    target.prefill(0, ids, 0)

    def of_target(count: int) -> float:
        return _seconds(lambda: target.forward(0, [ids[:count]], [_CONTEXT]))

    def of_draft(count: int) -> float:
        """The rows of so many tokens after a context whose own row was asked for before."""
        ids.append(1)
        root = Expand(ids, len(ids) - 1, ((),))
        alone = _seconds(lambda: draft.answer({"times": root}))
        tree = Expand(ids, len(ids), tuple((1 + i,) for i in range(count)))
        return alone if count == 1 else _seconds(lambda: draft.answer({"times": tree}))

    draft.answer({"times": Expand(ids, 0, ((),))})
    times = Times(
        {n: _median(of_target, n) for n in (1, 3, 5, 9)}, {n: _median(of_draft, n) for n in (1, 2, 4, 8)}
    )
    draft.release("times")
    return times


def _median(measure: Callable[[int], float], count: int) -> float:
    return statistics.median(measure(count) for _ in range(_REPEATS))


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
