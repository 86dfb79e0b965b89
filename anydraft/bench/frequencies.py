"""Do drawn tokens come from stated distributions? Tests with p-values, pure functions.

Draws come in groups: those of one group are independent draws from one known distribution p (of a prompt,
or of a prompt and the tokens drawn after it). Two tests complete each other:

- :func:`frequency_test`, the G-test (likelihood ratio) of the counts; rare tokens share cells. It sees
  wrong shares of single tokens, and needs many draws.
- :func:`likelihood_test` of the draws' mean log p. It sees text that is on the whole too unlikely or too
  likely (a wrong temperature, a wrong token map) from far fewer draws, and adds up over all groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

LEAST_EXPECTED = 5.0
LEAST_SHARE = 0.03
"""Smaller cells would drown what one token shows in the chance of all the others."""
_TILTS = tuple(sign * 0.01 * 1.25**i for sign in (1, -1) for i in range(28) if sign * 0.01 * 1.25**i > -1)


@dataclass(frozen=True)
class Group:
    """Draws of one distribution.

    Attributes:
        counts: how often each token was drawn; tokens that never were may be left out.
        p: [V], the probabilities they should have been drawn with; need not be normalised.
    """

    counts: Mapping[int, int]
    p: torch.Tensor

    @property
    def num_draws(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class TestResult:
    """A test's statistic, its degrees of freedom (0 where it has none) and its p-value."""

    __test__ = False  # no test of pytest's

    statistic: float
    degrees: int
    p_value: float


def frequency_test(groups: Sequence[Group]) -> TestResult | None:
    """The G-test of all groups together: 2 sum O ln(O / E), each group's divided by Williams's factor, which
    brings its mean to the degrees of freedom; these add up over groups, as the groups are independent given
    what they follow. A cell is a token or several that are expected ``LEAST_EXPECTED`` times and in
    ``LEAST_SHARE`` of the group's draws. None where no group has two cells.

    G and not Pearson's statistic, whose tail is far too heavy at small expected counts for the small levels
    that are used here.
    """
    statistic, degrees = 0.0, 0
    for group in groups:
        p = _normalised(group.p)
        counts = torch.zeros_like(p)
        counts[list(group.counts)] = torch.tensor(list(group.counts.values()), dtype=p.dtype)
        if bool((counts[p == 0] > 0).any()):
            return TestResult(math.inf, 1, 0.0)
        total = group.num_draws
        cell = cells(p * total, max(LEAST_EXPECTED, LEAST_SHARE * total))
        k = int(cell.max()) + 1
        if k < 2:
            continue
        expected = p.new_zeros(k).index_add_(0, cell, p) * total
        observed = p.new_zeros(k).index_add_(0, cell, counts)
        g = 2.0 * float(torch.special.xlogy(observed, observed / expected).sum())
        williams = 1.0 + (float((total / expected).sum()) - 1.0) / (6.0 * total * (k - 1))
        statistic += max(g, 0.0) / williams
        degrees += k - 1
    return TestResult(statistic, degrees, chi_square_tail(statistic, degrees)) if degrees else None


def cells(expected: torch.Tensor, least_expected: float) -> torch.Tensor:
    """The cell of each token, int64 [V]: one of its own for each that is expected often enough; the rare ones
    go together in order of probability, to cells of that expected count at least. One cell where that is not
    to be had."""
    common = expected >= least_expected
    cell = torch.full_like(expected, -1, dtype=torch.int64)
    num_common = int(common.sum())
    cell[common] = torch.arange(num_common)
    rare = torch.nonzero(~common).flatten()
    if not len(rare):
        return cell
    rare = rare[expected[rare].argsort(descending=True)]
    before = expected[rare].cumsum(0) - expected[rare]
    # Each rare token is below the least: a bin twice as wide, less what the last token before it overlaps,
    # still holds the least. The last bin may not.
    bins = (before / (2.0 * least_expected)).long()
    if float(expected[rare][bins == bins[-1]].sum()) < least_expected:
        bins[bins == bins[-1]] = bins[-1] - 1
    cell[rare] = bins + num_common
    if int(bins[-1]) < 0:
        smallest = expected.masked_fill(~common, math.inf).argmin()
        cell[rare] = int(cell[smallest]) if num_common else 0
    return cell


def likelihood_test(groups: Sequence[Group]) -> TestResult:
    """A two-sided test of S, the sum of ln p over all draws, by Chernoff's bound.

    Under the null the moment generating function of S is the product over draws of sum_v p(v)^(1 + t), so
    P(S >= s) <= min over t > 0 of exp(-t s) times it, and likewise below with t < 0: true for any number of
    draws. The statistic is S less its mean, a draw.
    """
    total = sum(group.num_draws for group in groups)
    if not total:
        return TestResult(0.0, 0, 1.0)
    tilts = torch.tensor(_TILTS, dtype=torch.float64)
    exponents = torch.zeros_like(tilts)
    excess = 0.0
    for group in groups:
        p = _normalised(group.p)
        if any(float(p[i]) == 0.0 for i in group.counts):
            return TestResult(-math.inf, 0, 0.0)
        log_p = p[p > 0].log()
        mean = float((log_p.exp() * log_p).sum())
        centred = log_p - mean
        excess += sum(count * (math.log(float(p[i])) - mean) for i, count in group.counts.items())
        for i, tilt in enumerate(_TILTS):
            exponents[i] += group.num_draws * torch.logsumexp(log_p + tilt * centred, 0)
    bound = float((exponents - tilts * excess).min())
    return TestResult(excess / total, 0, min(1.0, 2.0 * math.exp(min(bound, 0.0))))


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square of ``degrees`` >= ``statistic``), by the regularised upper incomplete gamma function."""
    half = torch.tensor([degrees / 2.0, max(statistic, 0.0) / 2.0], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm, 1979): calling those at most alpha wrong is mistaken, in any
    of them, with probability at most alpha, however they depend on each other."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def _normalised(p: torch.Tensor) -> torch.Tensor:
    p = p.double().cpu()
    return p / p.sum()
