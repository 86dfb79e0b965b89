"""The exact law of a request's output: of the target alone, and through a method and a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anydraft.methods.base import Method, Prompt, Proposal, Proposer, drive
from anydraft.rules import sampling, verify
from anydraft.rules.noise import Noise
from tests.proof.enumeration import Law, TapeNoise, enumerate_law
from tests.proof.worlds import TableDraft, World

Rule = Callable[[torch.Tensor, Proposal, Noise, int], verify.Verdict]


def rejection(p: torch.Tensor, proposal: Proposal, noise: Noise, position: int) -> verify.Verdict:
    if proposal.q is None:
        return exact(p, proposal, noise, position)
    return verify.verify_rejection(p, proposal.token_ids, proposal.q, noise, position)


def block(p: torch.Tensor, proposal: Proposal, noise: Noise, position: int) -> verify.Verdict:
    if proposal.q is None:
        return exact(p, proposal, noise, position)
    return verify.verify_block(p, proposal.token_ids, proposal.q, noise, position)


def exact(p: torch.Tensor, proposal: Proposal, noise: Noise, position: int) -> verify.Verdict:
    return verify.verify_exact(p, proposal.token_ids, noise, position)


RULES: dict[str, Rule] = {"rejection": rejection, "block": block, "exact": exact}


def target_rows(world: World, output: Sequence[int], proposal: Sequence[int] = ()) -> torch.Tensor:
    """p, float64 [len(proposal) + 1, V], after the request's processors."""
    return sampling.probabilities(
        _logits(world, output, proposal), world.params, _history(world, output), proposal
    )


def ar_law(world: World) -> Law:
    """The target alone: each token's p is worked out for itself."""
    law: Law = {}
    open_ends: Law = {(): 1.0}
    while open_ends:
        output, mass = open_ends.popitem()
        if finished(world, output):
            law[output] = mass
            continue
        for token, p in enumerate(target_rows(world, output)[0].tolist()):
            if p > 0.0:
                open_ends[*output, token] = mass * p
    return law


def speculative_law(world: World, method: Method, rule: Rule) -> Law:
    """The law through ``method`` and ``rule``, a step at a time: outputs that came about in several ways go
    on together, each from a proposer that has observed them."""
    law: Law = {}
    open_ends: Law = {(): 1.0}
    while open_ends:
        output = min(open_ends, key=len)
        mass = open_ends.pop(output)
        if finished(world, output):
            law[output] = mass
            continue
        for emitted, probability in step_law(world, method, rule, output).items():
            longer = (*output, *emitted)
            open_ends[longer] = open_ends.get(longer, 0.0) + mass * probability
    return law


def step_law(world: World, method: Method, rule: Rule, output: tuple[int, ...]) -> Law:
    """The law of what one step emits after ``output``."""

    def program(noise: TapeNoise) -> tuple[int, ...]:
        proposer = method.start(prompt(world, noise))
        if output:
            proposer.observe(output)
        backend = TableDraft(world.draft_table, world.draft)
        return take_step(world, proposer, backend, rule, noise, output)[0]

    return enumerate_law(program)


def whole_law(world: World, method: Method, rule: Rule) -> Law:
    """The same law over whole requests, each with one proposer, one backend and one source of noise."""

    def program(noise: TapeNoise) -> tuple[int, ...]:
        return run_request(world, method, rule, noise, noise)

    return enumerate_law(program)


def run_request(
    world: World, method: Method | None, rule: Rule, noise: Noise, draft_noise: Noise | None
) -> tuple[int, ...]:
    """A request from start to end; ``method`` None is the target alone."""
    proposer = method.start(prompt(world, draft_noise)) if method else None
    backend = TableDraft(world.draft_table, world.draft)
    output: tuple[int, ...] = ()
    while not finished(world, output):
        output += take_step(world, proposer, backend, rule, noise, output)[0]
    return output


def accepted_law(world: World, method: Method, rule: Rule, output: tuple[int, ...] = ()) -> Law:
    """The law of (number accepted,) in one step after ``output``."""

    def program(noise: TapeNoise) -> tuple[int, ...]:
        proposer = method.start(prompt(world, noise))
        proposer.observe(output)
        backend = TableDraft(world.draft_table, world.draft)
        return (take_step(world, proposer, backend, rule, noise, output)[1],)

    return enumerate_law(program)


def take_step(
    world: World,
    proposer: Proposer | None,
    backend: TableDraft,
    rule: Rule,
    noise: Noise,
    output: tuple[int, ...],
) -> tuple[tuple[int, ...], int]:
    """An engine's step in miniature: what it emits, and how many tokens were accepted."""
    room = (world.params.max_tokens or 0) - len(output) - 1 if world.capped else 8
    proposal = drive({"request": proposer.propose(room)}, backend)["request"] if proposer else Proposal()
    ids = proposal.token_ids
    assert len(ids) <= room
    if world.params.greedy:
        logits = _logits(world, output, ids)
        verdict = verify.verify_greedy(
            sampling.greedy_ids(logits, world.params, _history(world, output), ids), ids
        )
    else:
        verdict = rule(target_rows(world, output, ids), proposal, noise, len(output))
    emitted = until_finished(world, output, verdict.token_ids)
    if proposer is not None:
        proposer.observe(emitted)
    return emitted, verdict.num_accepted


def until_finished(world: World, output: tuple[int, ...], token_ids: Sequence[int]) -> tuple[int, ...]:
    """The part of a block that comes out: up to the token that ends the request."""
    for size in range(1, len(token_ids)):
        if finished(world, (*output, *token_ids[:size])):
            return tuple(token_ids[:size])
    return tuple(token_ids)


def finished(world: World, output: Sequence[int]) -> bool:
    return len(output) >= (world.params.max_tokens or 0) or bool(output and output[-1] in world.stop_ids)


def prompt(world: World, noise: Noise | None) -> Prompt:
    temperature = 0.0 if world.params.greedy else world.params.temperature
    return Prompt(world.prompt_ids, temperature=temperature, noise=noise)


def _logits(world: World, output: Sequence[int], proposal: Sequence[int]) -> torch.Tensor:
    ids = (*world.prompt_ids, *output)
    return torch.stack([world.target_table.logits((*ids, *proposal[:i])) for i in range(len(proposal) + 1)])


def _history(world: World, output: Sequence[int]) -> sampling.History:
    return sampling.History(world.prompt_ids, output, world.stop_ids)
