from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anydraft.rules.noise import CoupledNoise, KeyedNoise

weights = st.lists(st.sampled_from([0.0, 1e-30, 1e-7, 0.2, 1.0, 5.0]), min_size=1, max_size=9).filter(any)
MAKES = [KeyedNoise, CoupledNoise]


def frequencies(draws: list[int], size: int) -> list[float]:
    return [draws.count(i) / len(draws) for i in range(size)]


@given(weights, st.integers(0, 2**70), st.integers(0, 10**6), st.sampled_from(MAKES))
def test_an_index_of_weight_zero_is_never_drawn(
    given_weights: list[float], seed: int, position: int, make: type[KeyedNoise]
) -> None:
    for dtype in (torch.float32, torch.float64):
        row = torch.tensor(given_weights, dtype=dtype)
        for stream in ("target", "draft", "residual"):
            assert row[make(seed).categorical(row, stream, position)] > 0


def test_rounding_at_the_end_of_the_scale_finds_the_last_positive_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noise = KeyedNoise(1)
    monkeypatch.setattr(noise, "uniform", lambda *_: 1.0)
    assert noise.categorical(torch.tensor([0.3, 0.7, 0.0]), "draft", 0) == 1


@pytest.mark.parametrize("make", MAKES)
def test_draws_are_a_function_of_their_name_alone(make: type[KeyedNoise]) -> None:
    row = torch.rand(1000)
    names = [(s, p, a) for s in ("target", "draft", "accept", "residual") for p in range(5) for a in range(3)]
    first, again = make(7), make(7)
    forwards = [first.categorical(row, *name) for name in names]
    backwards = [again.categorical(row, *name) for name in reversed(names)]
    assert forwards == backwards[::-1]
    assert forwards != [make(8).categorical(row, *name) for name in names]
    uniforms = {first.uniform(*name) for name in names}
    assert len(uniforms) == len(names)


@pytest.mark.parametrize("make", MAKES)
def test_frequencies_are_the_weights(make: type[KeyedNoise]) -> None:
    row = torch.tensor([2.0, 0.0, 1.0, 5.0])
    n = 8000
    noise = make(3)
    got = frequencies([noise.categorical(row, "target", i) for i in range(n)], 4)
    for mine, p in zip(got, [0.25, 0.0, 0.125, 0.625], strict=True):
        assert abs(mine - p) <= 5 * math.sqrt(p * (1 - p) / n)
    assert abs(sum(noise.bernoulli(0.3, "accept", i) for i in range(n)) / n - 0.3) < 5 * math.sqrt(0.21 / n)


def test_certain_outcomes_are_certain() -> None:
    noise = KeyedNoise(5)
    assert all(noise.bernoulli(1.0, "accept", i) for i in range(100))
    assert not any(noise.bernoulli(0.0, "accept", i) for i in range(100))


def test_an_arrival_does_not_depend_on_how_many_are_asked() -> None:
    assert torch.equal(CoupledNoise(1).arrivals(4, 10), CoupledNoise(1).arrivals(4, 1000)[:10])
    assert torch.equal(CoupledNoise(1).arrivals(4, 1000)[:10], CoupledNoise(1).arrivals(4, 10))
    noise = CoupledNoise(1)
    short = noise.arrivals(4, 10).clone()
    assert torch.equal(noise.arrivals(4, 20)[:10], short)


def test_a_draft_with_the_targets_row_draws_the_targets_token() -> None:
    """The draft's ids are the target's in another order; with equal probabilities they always agree."""
    p = torch.rand(40)
    order = torch.randperm(40)
    noise = CoupledNoise(9)
    race = noise.for_draft(order)
    for position in range(50):
        drawn = race.categorical(p[order], "draft", position)
        assert int(order[drawn]) == noise.categorical(p, "target", position)


def test_coupled_draws_agree_as_often_as_promised() -> None:
    """At least (1 - TV) / (1 + TV), where independent draws agree with sum p q."""
    p = torch.tensor([0.5, 0.3, 0.2])
    q = torch.tensor([0.3, 0.3, 0.4])
    noise = CoupledNoise(11)
    race = noise.for_draft(torch.arange(3))
    n = 4000
    agreed = sum(race.categorical(q, "draft", i) == noise.categorical(p, "target", i) for i in range(n)) / n
    promised = (1 - 0.2) / (1 + 0.2)
    assert agreed > promised - 4 * math.sqrt(0.25 / n)


def test_draft_ids_without_a_target_id_have_noise_of_their_own() -> None:
    noise = CoupledNoise(2)
    race = noise.for_draft(torch.tensor([-1, 0, -1]))
    n = 4000
    got = frequencies([race.categorical(torch.tensor([1.0, 1.0, 2.0]), "draft", i) for i in range(n)], 3)
    for mine, p in zip(got, [0.25, 0.25, 0.5], strict=True):
        assert abs(mine - p) <= 5 * math.sqrt(p * (1 - p) / n)
