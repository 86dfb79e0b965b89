"""Coupled sampling: one seed, one text, with or without a draft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anydraft.methods.base import DraftSettings
from anydraft.methods.tli import TLI
from anydraft.rules.noise import CoupledNoise, KeyedNoise, Noise
from tests.proof.catalogue import REPETITIVE, SAME, SHARED, STRINGS, WORLDS
from tests.proof.laws import exact, prompt, run_request, take_step
from tests.proof.makers import Make, auto, auto_slrs, lookup, slem, slrs, standard, tli
from tests.proof.test_exact import case_id
from tests.proof.worlds import TableDraft, World

PAIRS = [
    *((standard, world) for world in SAME),
    *((tli, world) for world in [*SAME, *SHARED]),
    *((slrs, world) for world in STRINGS),
    *((slem, world) for world in WORLDS),
    *((auto, world) for world in REPETITIVE),
    *((auto_slrs, world) for world in REPETITIVE),
    *((lookup, world) for world in WORLDS),
]


@pytest.mark.parametrize(("make", "world"), PAIRS, ids=case_id)
def test_the_same_seed_gives_the_same_text(make: Make, world: World) -> None:
    longer = replace(world, params=replace(world.params, max_tokens=8))
    methods = [make(longer), make(replace(longer, num_speculative_tokens=4, draft_temperature=0.6))]
    for seed in range(6):
        alone = run_request(longer, None, exact, CoupledNoise(seed), None)
        for method in methods:
            noise = CoupledNoise(seed)
            assert run_request(longer, method, exact, noise, noise) == alone


@pytest.mark.parametrize("make", [slem, lookup, slrs], ids=case_id)
def test_exact_match_alone_has_one_text_a_seed_too(make: Make) -> None:
    for world in STRINGS[:6]:
        for seed in range(5):
            alone = run_request(world, None, exact, KeyedNoise(seed), None)
            noise = KeyedNoise(seed)
            assert run_request(world, make(world), exact, noise, noise) == alone


def accepted(world: World, make: Make, noises: list[Noise]) -> float:
    """Mean number of accepted tokens in the first step."""
    total = 0
    method = make(world)
    for noise in noises:
        proposer = method.start(prompt(world, noise))
        backend = TableDraft(world.draft_table, world.draft)
        total += take_step(world, proposer, backend, exact, noise, ())[1]
    return total / len(noises)


@pytest.mark.parametrize("make", [tli, slrs], ids=case_id)
def test_a_draft_on_the_same_noise_is_accepted_more_than_one_on_its_own(make: Make) -> None:
    seeds = range(50)
    coupled = sum(accepted(world, make, [CoupledNoise(s) for s in seeds]) for world in SHARED[:3])
    independent = sum(accepted(world, make, [KeyedNoise(s) for s in seeds]) for world in SHARED[:3])
    assert coupled > 1.3 * independent


def test_a_perfect_draft_is_always_accepted_when_coupled() -> None:
    world = replace(SAME[0])  # a copy, whose draft we change

    def perfect(w: World) -> TLI:
        w.__dict__["draft_table"] = w.target_table
        return TLI(w.bridge, w.draft, w.target_table.vocab_size, DraftSettings(num_speculative_tokens=2))

    full = accepted(world, perfect, [CoupledNoise(s) for s in range(40)])
    ended_early = sum(len(run_request(world, None, exact, CoupledNoise(s), None)) < 3 for s in range(40))
    assert full >= 2 * (40 - ended_early) / 40
