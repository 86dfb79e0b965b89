"""What a step costs and what a draft is worth: the arithmetic behind ``auto``.

The engine tells how long its forwards took; from these and the acceptance so far follow how many tokens to
draft, down to none. Seconds everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_MEMORY = 0.2
"""Weight of the newest measurement, once there are some: machines get busy and calm down again."""
_OUTLIER = 2.0
"""A measurement above so many times the mean counts as that much: a moment in which something else ran."""
_OFTEN = 5
"""A time that was measured so often stands for itself."""
_WORTH_MANY = 1.05
"""Speed-up to be predicted before several rows propose: times are noisy, and a wrong yes holds up all of them."""
_WIDEST = 9
"""Tokens a row of the widest forward whose time says something of the others: beyond, products are no longer read
once for all tokens, and times rise faster."""


@dataclass
class CostModel:
    """Measured times: target forwards by their number of tokens, draft forwards by their number of rows."""

    target: dict[int, float] = field(default_factory=dict)
    draft: dict[int, float] = field(default_factory=dict)
    num_rows: int = 1
    """Rows of the current step; the engine sets it."""
    _counts: dict[tuple[str, int], int] = field(default_factory=dict)
    _lines: dict[tuple[str, int], tuple[float, float, float]] = field(default_factory=dict)
    """Fitted since the last measurement: every row of a step asks for the same ones many times."""

    def observe_target(self, num_tokens: int, seconds: float) -> None:
        """A target forward over ``num_tokens`` tokens of all rows took so long."""
        self._average(self.target, "target", num_tokens, seconds)

    def observe_draft(self, num_rows: int, seconds: float) -> None:
        """A draft forward over ``num_rows`` rows took so long."""
        self._average(self.draft, "draft", num_rows, seconds)

    def clear(self) -> None:
        """Forget what was measured."""
        for table in (self.target, self.draft, self._counts, self._lines):
            table.clear()

    def _average(self, table: dict[int, float], name: str, key: int, seconds: float) -> None:
        count = self._counts[name, key] = self._counts.get((name, key), 0) + 1
        weight = max(1.0 / count, _MEMORY)
        self._lines.clear()
        mean = table.get(key, seconds)
        table[key] = (1.0 - weight) * mean + weight * min(seconds, _OUTLIER * mean)

    def known(self, *, drafted: bool) -> bool:
        """Whether steps with and without proposals (and drafts, if they are drafted) have been seen."""
        return len(self.target) >= 2 and (bool(self.draft) or not drafted)

    def target_time(self, num_tokens: int) -> float:
        """Of a forward over so many tokens: on the straight line that fits those of the current rows best."""
        if ("target", self.num_rows) not in self._lines:
            near = [n for n in self.target if self.num_rows <= n <= _WIDEST * self.num_rows]
            keys = near if len(near) > 1 else list(self.target)
            self._lines["target", self.num_rows] = self._fit("target", self.target, keys)
        return _on_line(self._lines["target", self.num_rows], num_tokens)

    def _fit(self, name: str, table: dict[int, float], keys: list[int]) -> tuple[float, float, float]:
        """(mean, middle, slope) by least squares, weighted by how often each was measured: single times are too
        noisy to take their difference for the price of a token. The line never falls."""
        weights = [min(self._counts[name, n], 1.0 / _MEMORY) for n in keys]
        total = sum(weights)
        if not total:
            return 0.0, 0.0, 0.0
        middle = sum(w * n for w, n in zip(weights, keys, strict=True)) / total
        mean = sum(w * table[n] for w, n in zip(weights, keys, strict=True)) / total
        spread = sum(w * (n - middle) ** 2 for w, n in zip(weights, keys, strict=True))
        tilt = sum(w * (n - middle) * (table[n] - mean) for w, n in zip(weights, keys, strict=True))
        return mean, middle, max(tilt / spread, 0.0) if spread else 0.0

    def plain_time_a_row(self) -> float:
        """A row's share of a step of the current rows that proposes nothing; NaN while no forward so small has
        been measured."""
        if not self.target or min(self.target) > self.num_rows:
            return math.nan
        return self.plain_time(self.num_rows) / self.num_rows

    def plain_time(self, num_rows: int) -> float:
        """Of a forward that proposes nothing: as it was measured, once that was often. Products of many tokens cost
        more a token than those of few, so the line through wide forwards makes the narrowest look dear."""
        if self._counts.get(("target", num_rows), 0) >= _OFTEN:
            return self.target[num_rows]
        return self.target_time(num_rows)

    def draft_time(self, num_rows: int) -> float:
        """Of a draft forward over so many rows."""
        if ("draft", 0) not in self._lines:
            self._lines["draft", 0] = self._fit("draft", self.draft, list(self.draft))
        return _on_line(self._lines["draft", 0], num_rows)

    def speedup(
        self, length: int, acceptance: float, num_rows: int, *, drafted: bool, forwards: float = 1.0
    ) -> float:
        """Predicted tokens a second with ``length`` proposed tokens a row, over those with none.

        Args:
            acceptance: probability of accepting a token, given that those before it were.
            num_rows: rows that step together and all propose.
            drafted: whether a draft model makes the tokens (copies cost nothing).
            forwards: of the draft, for each token.
        """
        plain = self.plain_time(num_rows)
        step = self.target_time(num_rows * (1 + length)) + (
            length * forwards * self.draft_time(num_rows) if drafted else 0.0
        )
        return expected_tokens(length, acceptance) * plain / step

    def best_length(
        self, most: int, acceptance: float, num_rows: int, *, drafted: bool, forwards: float = 1.0
    ) -> tuple[int, float]:
        """The length of at most ``most`` with the best predicted speed-up, and that speed-up (0 and 1.0 when
        nothing beats proposing nothing)."""
        choices = (
            (self.speedup(n, acceptance, num_rows, drafted=drafted, forwards=forwards), -n)
            for n in range(1, most + 1)
        )
        best, negative = max(choices, default=(1.0, 0))
        return (-negative, best) if best > (1.0 if num_rows == 1 else _WORTH_MANY) else (0, best)

    def least_survival(self, acceptance: float, num_rows: int, length: int, forwards: float = 1.0) -> float:
        """The chance to be accepted below which one more drafted token costs more than it brings.

        It costs so many draft ``forwards`` and a wider target forward, and brings that chance of a token, which
        is worth what a token takes at the present rate.
        """
        wide = self.target_time(num_rows * (1 + length))
        draft = forwards * self.draft_time(num_rows)
        seconds_a_token = (wide + length * draft) / expected_tokens(length, acceptance) / num_rows
        widening = self.target_time(num_rows * (2 + length)) - wide
        return min((draft + widening) / num_rows / max(seconds_a_token, 1e-9), 1.0)


def _on_line(line: tuple[float, float, float], at: int) -> float:
    mean, middle, slope = line
    return max(mean + slope * (at - middle), 0.0)


def expected_tokens(length: int, acceptance: float) -> float:
    """Tokens a step emits when each proposed one is accepted with ``acceptance``: 1 + a + ... + a^length."""
    if acceptance >= 1.0:
        return float(length + 1)
    return (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)


@dataclass
class Acceptance:
    """Running estimate of the probability that a proposed token is accepted, given those before it were.

    Counts fade with each trial: by half in about 20 of them, so that it follows the text.
    """

    accepted: float = 3.0
    trials: float = 5.0
    memory: float = 0.966

    def worth(self, trials: float) -> Acceptance:
        """The same rate, as if from so many trials: what another request begins with."""
        return Acceptance(self.rate * trials, trials)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """A proposal is one trial for each accepted token and one for the first rejected."""
        trials = min(num_accepted + 1, num_proposed)
        fade = self.memory**trials
        self.accepted = self.accepted * fade + num_accepted
        self.trials = self.trials * fade + trials

    @property
    def rate(self) -> float:
        return self.accepted / self.trials
