"""Every method under every rule gives the target's own law, to 1e-12."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from anydraft.methods.base import DraftSettings, Method
from anydraft.methods.lookup import Lookup
from anydraft.methods.slem import SLEM
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


CASES = [
    *((standard, rule, world) for rule, world in product(RULES, SAME)),
    *((tli, rule, world) for rule, world in product(RULES, [*SAME, *SHARED])),
    *((slem, "exact", world) for world in WORLDS),
    *((lookup, "exact", world) for world in WORLDS),
]


def case_id(value: object) -> str | None:
    return getattr(value, "name", None) or getattr(value, "__name__", None)


@pytest.mark.parametrize(("make", "rule", "world"), CASES, ids=case_id)
def test_the_law_is_the_targets(make: Make, rule: str, world: World) -> None:
    truth = ar_law(world)
    assert sum(truth.values()) == pytest.approx(1.0, abs=TOLERANCE)
    assert distance(speculative_law(world, make(world), RULES[rule]), truth) < TOLERANCE
