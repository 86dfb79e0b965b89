"""What "auto" drafts with in a sampled request: the method and draft temperature with the best predicted speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anydraft.methods.costs import CostModel, DraftWork


@dataclass(frozen=True)
class Drafting:
    """A way to draft, with what was measured of it.

    Attributes:
        method: its name.
        draft_temperature: of its drafts; 0: greedy, checked by exact match.
        forwards: draft forwards a drafted target token.
        acceptance: of a first drafted token, by the request's temperature.
    """

    method: str
    draft_temperature: float
    forwards: float
    acceptance: Mapping[float, float]

    def acceptance_at(self, temperature: float) -> float:
        """On the straight line between the measured temperatures, and level outside of them."""
        known = sorted(self.acceptance)
        below = max((t for t in known if t <= temperature), default=known[0])
        above = min((t for t in known if t >= temperature), default=known[-1])
        if below == above:
            return self.acceptance[below]
        share = (temperature - below) / (above - below)
        return (1.0 - share) * self.acceptance[below] + share * self.acceptance[above]


# From docs/results/sampling.md: means over its four pairs at the draft temperature named here; forwards as the engine
# counts them over a step.
CANDIDATES = (
    Drafting("slem", 0.0, 1.0, {0.7: 0.560, 1.0: 0.452}),
    Drafting("tli", 0.7, 1.0, {0.7: 0.548, 1.0: 0.533}),
    Drafting("slrs", 0.7, 1.4, {0.7: 0.593, 1.0: 0.561}),
)
"""The first is taken where nothing is known yet, or nothing else is better."""
LEAST_OVERLAP = 0.2
"""Share of the target's text tokens that the draft has too, below which nothing was measured."""
LEAST_GAIN = 1.03
"""Predicted speed over the first candidate's that is worth another choice."""


def choose_sampled(temperature: float, target_overlap: float, costs: CostModel, most: int) -> Drafting:
    """The candidate with the best predicted speed in a request sampled at ``temperature``.

    Args:
        target_overlap: share of the target's text tokens that the draft has too.
        costs: of the target's and the draft's forwards.
        most: drafted tokens a step at most.
    """
    first = CANDIDATES[0]
    if target_overlap < LEAST_OVERLAP or not costs.known(drafted=True):
        return first

    def speed(one: Drafting) -> float:
        acceptance = one.acceptance_at(temperature)
        return costs.best_length(most, acceptance, costs.num_rows, DraftWork(one.forwards))[1]

    best = max(CANDIDATES, key=speed)
    return best if speed(best) >= LEAST_GAIN * speed(first) else first
