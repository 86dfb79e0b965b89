"""The statistics that accuse: no false alarms on correct samplers, and slightly wrong ones are seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anydraft.bench.frequencies import Group, cells, chi_square_tail, frequency_test, holm, likelihood_test


def distribution(seed: int, size: int = 200, scale: float = 2.0) -> torch.Tensor:
    """A peaked row with a long tail, as models have."""
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(scale * torch.randn(size, generator=generator, dtype=torch.float64), dim=0)


def drawn(p: torch.Tensor, count: int, seed: int) -> Counter[int]:
    generator = torch.Generator().manual_seed(seed)
    return Counter(torch.multinomial(p, count, replacement=True, generator=generator).tolist())


def p_values(
    wrong: Callable[[torch.Tensor], torch.Tensor], count: int, runs: int
) -> list[tuple[float, float]]:
    """(G-test, likelihood test) of ``runs`` samples of ``wrong(p)`` against p."""
    results = []
    for seed in range(runs):
        p = distribution(seed)
        groups = [Group(drawn(wrong(p), count, seed), p)]
        frequency = frequency_test(groups)
        assert frequency is not None
        results.append((frequency.p_value, likelihood_test(groups).p_value))
    return results


@pytest.mark.parametrize("count", [60, 600])
def test_correct_samplers_are_flagged_at_the_stated_rate(count: int) -> None:
    runs = 1000
    results = p_values(lambda p: p, count, runs)
    for level in (0.1, 0.01, 0.001):
        g, likelihood = (sum(r[i] <= level for r in results) / runs for i in (0, 1))
        allowed = level + 4 * math.sqrt(level / runs)
        assert g <= allowed
        assert likelihood <= level
        if level == 0.1:
            assert g > 0.5 * level  # a test that never speaks would pass the rest


@pytest.mark.parametrize("expected", [5.0, 8.0, 20.0, 100.0])
def test_the_far_tail_of_a_cell_is_not_too_light(expected: float) -> None:
    """Exact false-alarm rates of the two-cell test, far below what simulation reaches."""
    share = 0.04
    n = round(expected / share)
    p = torch.tensor([share, 1.0 - share], dtype=torch.float64)
    results = []
    for k in range(n + 1):
        log_mass = (
            math.lgamma(n + 1)
            - math.lgamma(k + 1)
            - math.lgamma(n - k + 1)
            + k * math.log(share)
            + (n - k) * math.log1p(-share)
        )
        if log_mass < -60:
            continue
        result = frequency_test([Group({0: k, 1: n - k}, p)])
        assert result is not None
        results.append((result.p_value, math.exp(log_mass)))
    for level in (1e-3, 1e-5, 1e-7, 1e-9):
        assert sum(mass for value, mass in results if value <= level) <= 1.7 * level


def cooler(p: torch.Tensor) -> torch.Tensor:
    """The temperature is off by 10 %."""
    q = p ** (1 / 0.9)
    return q / q.sum()


def halved(p: torch.Tensor) -> torch.Tensor:
    """The second token comes out half as often as it should."""
    q = p.clone()
    q[p.argsort(descending=True)[1]] *= 0.5
    return q / q.sum()


def no_residual(p: torch.Tensor) -> torch.Tensor:
    """Rejected drafts of another model are replaced by draws from p, not from the residual."""
    kept = torch.minimum(p, distribution(10_000, len(p)))
    return kept + (1.0 - kept.sum()) * p


@pytest.mark.parametrize(
    ("wrong", "count", "which"), [(cooler, 3000, 1), (halved, 3000, 0), (no_residual, 2000, 0)]
)
def test_slightly_wrong_samplers_are_flagged(
    wrong: Callable[[torch.Tensor], torch.Tensor], count: int, which: int
) -> None:
    """At a level of 1e-5 in at least 9 of 10 samples."""
    results = p_values(wrong, count, 40)
    assert sum(r[which] <= 1e-5 for r in results) >= 36


def test_groups_add_up() -> None:
    """What no group shows alone, all of them show together."""
    groups = []
    for seed in range(30):
        p = distribution(seed)
        groups.append(Group(drawn(cooler(p), 150, seed), p))
    alone = [likelihood_test([group]).p_value for group in groups]
    assert min(alone) > 1e-5
    assert likelihood_test(groups).p_value < 1e-5
    assert likelihood_test([Group(drawn(g.p, 150, i), g.p) for i, g in enumerate(groups)]).p_value > 0.01


def test_an_impossible_token_is_proof() -> None:
    p = torch.tensor([0.5, 0.5, 0.0])
    group = Group({0: 5, 1: 6, 2: 1}, p)
    frequency = frequency_test([group])
    assert frequency is not None
    assert frequency.p_value == likelihood_test([group]).p_value == 0.0


def test_a_single_cell_is_no_test() -> None:
    assert frequency_test([Group({0: 50}, torch.tensor([1.0, 0.0]))]) is None
    assert frequency_test([Group({0: 3, 1: 2}, torch.tensor([0.5, 0.5]))]) is None
    assert frequency_test([]) is None
    assert likelihood_test([Group({0: 50}, torch.tensor([1.0, 0.0]))]).p_value == 1.0
    assert likelihood_test([]).p_value == 1.0


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=60), st.floats(0.5, 8.0))
def test_every_cell_is_expected_often_enough(expected: list[float], least: float) -> None:
    row = torch.tensor(expected, dtype=torch.float64)
    cell = cells(row, least)
    assert sorted(set(cell.tolist())) == list(range(int(cell.max()) + 1))
    sums = torch.zeros(int(cell.max()) + 1, dtype=torch.float64).index_add_(0, cell, row)
    assert len(sums) == 1 or float(sums.min()) >= least - 1e-9
    # A token that is common enough has a cell of its own, but for the smallest of them.
    shared = [i for i, c in enumerate(cell.tolist()) if expected[i] >= least and cell.tolist().count(c) > 1]
    assert len(shared) <= 1


def test_chi_square_tail() -> None:
    assert chi_square_tail(3.841458820694124, 1) == pytest.approx(0.05, rel=1e-9)
    assert chi_square_tail(29.58829844507442, 10) == pytest.approx(0.001, rel=1e-9)
    assert chi_square_tail(-0.5, 3) == 1.0


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
