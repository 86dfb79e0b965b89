"""The methods under proof, made for a world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anydraft.methods.auto import Auto, AutoProposer, ChooseSampled
from anydraft.methods.base import DraftSettings, Method, Prompt
from anydraft.methods.costs import Acceptance
from anydraft.methods.lookup import Lookup
from anydraft.methods.slem import SLEM
from anydraft.methods.slrs import SLRS
from anydraft.methods.standard import Standard
from anydraft.methods.tli import TLI
from anydraft.methods.winners import Drafting
from tests.proof.worlds import World

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


def auto(world: World) -> Method:
    """Copies and sampled drafts, by turns, where both pay and a third draft seldom does."""
    return _auto(world, tli(world), None)


def auto_slrs(world: World) -> Method:
    """The same with a method that it chose for sampled requests, colder than the pair's own."""
    chosen = Drafting("slrs", 0.7, 1.5, {1.0: 0.7})
    return _auto(world, slem(world), lambda temperature, costs: (slrs(world), chosen))


class _Forgetful(Auto):
    """Begins every request alike: an enumeration runs one request many times, and those must not learn from each
    other."""

    def start(self, prompt: Prompt) -> AutoProposer:
        self.copied = Acceptance(1.5, 3.0)
        self.drafted.clear()
        return super().start(prompt)


def _auto(world: World, drafting: Method, sampled: ChooseSampled | None) -> Auto:
    copies = Lookup(world.num_speculative_tokens, min_ngram=1, stop_ids=world.stop_ids)
    method = _Forgetful(copies, drafting, 3, sampled=sampled)
    for num_tokens, seconds in [(1, 0.1), (4, 0.13)]:
        method.costs.observe_target(num_tokens, seconds)
    method.costs.observe_draft(1, 0.02)
    return method
