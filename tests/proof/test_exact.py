"""Every method under every rule gives the target's own law, to 1e-12."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.proof.catalogue import REPETITIVE, SAME, SHARED, STRINGS, WORLDS, world_named
from tests.proof.enumeration import distance
from tests.proof.laws import RULES, accepted_law, ar_law, speculative_law, whole_law
from tests.proof.makers import (
    Make,
    auto,
    auto_slrs,
    lookup,
    slem,
    slrs,
    slrs_two_rows,
    slrs_whole,
    standard,
    tli,
)
from tests.proof.worlds import World

TOLERANCE = 1e-12

CASES = [
    *product([standard], RULES, SAME),
    *product([tli], ["rejection", "block"], [*SAME, *SHARED]),
    *product([slrs, slrs_whole, slrs_two_rows], ["rejection", "block"], STRINGS),
    *product([tli, slrs], ["exact"], SHARED[:4]),
    *product([auto, auto_slrs], ["rejection", "block"], REPETITIVE),
    *product([slem, lookup], ["exact"], WORLDS),
]


def case_id(value: object) -> str | None:
    return getattr(value, "name", None) or getattr(value, "__name__", None)


@pytest.mark.parametrize(("make", "rule", "world"), CASES, ids=case_id)
def test_the_law_is_the_targets(make: Make, rule: str, world: World) -> None:
    truth = ar_law(world)
    assert sum(truth.values()) == pytest.approx(1.0, abs=TOLERANCE)
    assert distance(speculative_law(world, make(world), RULES[rule]), truth) < TOLERANCE


WHOLE = [world_named("long blocks"), world_named("forbidden tokens"), world_named("end tokens are ignored")]


@pytest.mark.parametrize("world", WHOLE, ids=case_id)
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (auto, "rejection"),
        (auto, "block"),
        (auto_slrs, "rejection"),
        (auto_slrs, "block"),
        (tli, "rejection"),
        (tli, "block"),
        (slrs, "rejection"),
        (slrs, "block"),
        (slem, "exact"),
        (lookup, "exact"),
    ],
    ids=case_id,
)
def test_whole_requests_have_the_targets_law(make: Make, rule: str, world: World) -> None:
    """One proposer, one draft and one source of noise from the first token to the last: nothing that a step
    leaves behind changes the next, no draw is made twice, and the draft's stable ids are stable."""
    small = replace(world, params=replace(world.params, max_tokens=3))
    assert distance(whole_law(small, make(small), RULES[rule]), ar_law(small)) < TOLERANCE


@pytest.mark.parametrize("make", [tli, slrs])
@pytest.mark.parametrize("world", SHARED, ids=case_id)
def test_block_verification_accepts_at_least_as_many(make: Make, world: World) -> None:
    """At each number of tokens: P(at least i accepted) is no smaller than token by token."""
    method = make(world)
    by_token = accepted_law(world, method, RULES["rejection"])
    by_block = accepted_law(world, method, RULES["block"])
    for least in range(1, world.num_speculative_tokens + 1):
        tail_token, tail_block = (
            sum(p for (accepted,), p in law.items() if accepted >= least) for law in (by_token, by_block)
        )
        assert tail_block >= tail_token - TOLERANCE


def test_block_verification_accepts_more_somewhere() -> None:
    world = world_named("long blocks")
    expected = {
        rule: sum(accepted * p for (accepted,), p in accepted_law(world, tli(world), RULES[rule]).items())
        for rule in ("rejection", "block")
    }
    assert expected["block"] > expected["rejection"] + 0.001
