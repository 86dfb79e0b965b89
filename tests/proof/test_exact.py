"""Every method under every rule gives the target's own law, to 1e-12."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from anydraft.methods.base import DraftSettings, Method
from anydraft.methods.lookup import Lookup
from anydraft.methods.slem import SLEM
from anydraft.methods.slrs import SLRS
from anydraft.methods.standard import Standard
from anydraft.methods.tli import TLI
from tests.proof.catalogue import SAME, SHARED, WORLDS
from tests.proof.enumeration import distance
from tests.proof.laws import RULES, ar_law, speculative_law
from tests.proof.worlds import World

TOLERANCE = 1e-12

Make = Callable[[World], Method]


def settings(world: World) -> DraftSettings:
    return DraftSettings(world.num_speculative_tokens, world.draft_temperature, world.min_confidence)


def standard(world: World) -> Method:
    return Standard(world.bridge, world.draft, world.target_table.vocab_size, settings(world))


def tli(world: World) -> Method:
    return TLI(world.bridge, world.draft, world.target_table.vocab_size, settings(world))


def slem(world: World) -> Method:
    return SLEM(world.bridge, world.target, world.draft, settings(world))


def lookup(world: World) -> Method:
    return Lookup(world.num_speculative_tokens, min_ngram=1, stop_ids=world.stop_ids)


def slrs(world: World, epsilon: float = 0.05, max_rows: int = 6) -> Method:
    chosen = replace(settings(world), extra={"epsilon": epsilon, "max_rows": max_rows})
    return SLRS(world.bridge, world.draft, world.target_table.vocab_size, chosen)


def slrs_whole(world: World) -> Method:
    """Trees that are never cut."""
    return slrs(world, epsilon=0.0, max_rows=1000)


def slrs_two_rows(world: World) -> Method:
    return slrs(world, epsilon=0.15, max_rows=2)


STRINGS = [world for world in WORLDS if world.name != "no text in common"]
"""Where some text of the draft begins with a token of the target."""

CASES = [
    *product([standard], RULES, SAME),
    *product([tli], RULES, [*SAME, *SHARED]),
    *product([slrs], RULES, STRINGS),
    *(
        (make, rule, world)
        for make, rule in product([slrs_whole, slrs_two_rows], ["rejection", "block"])
        for world in STRINGS
    ),
    *product([slem, lookup], ["exact"], WORLDS),
]


def case_id(value: object) -> str | None:
    return getattr(value, "name", None) or getattr(value, "__name__", None)


@pytest.mark.parametrize(("make", "rule", "world"), CASES, ids=case_id)
def test_the_law_is_the_targets(make: Make, rule: str, world: World) -> None:
    truth = ar_law(world)
    assert sum(truth.values()) == pytest.approx(1.0, abs=TOLERANCE)
    assert distance(speculative_law(world, make(world), RULES[rule]), truth) < TOLERANCE
