"""Deliberate mistakes, each of which the bench must see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from anydraft.methods import slem as slem_module
from anydraft.methods.base import Drafted, Method, Prompt, Proposal, ProposalGenerator, Rollout
from anydraft.methods.request import retokenized_context
from anydraft.methods.rollouts import Rollouts
from anydraft.methods.slrs import SLRSProposer
from anydraft.methods.token_rule import TokenMap
from anydraft.rules import sampling, verify
from anydraft.rules.noise import KeyedNoise, Noise
from anydraft.rules.verify import Verdict
from tests.proof import laws
from tests.proof.catalogue import world_named
from tests.proof.enumeration import distance
from tests.proof.makers import Make, lookup, slem, slrs, tli
from tests.proof.worlds import TableDraft, World

SEEN = 1e-4
Patch = pytest.MonkeyPatch


def error(make: Make, rule: str, world: World) -> float:
    return distance(laws.speculative_law(world, make(world), laws.RULES[rule]), laws.ar_law(world))


def rejection_with(
    ratio: Callable[[torch.Tensor, torch.Tensor, Sequence[int], int], float] | None = None,
    residual: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] | None = None,
    bonus: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] | None = None,
) -> Callable[..., Verdict]:
    """Rejection written out again, with parts that can be replaced by wrong ones."""

    def rule(p: torch.Tensor, ids: Sequence[int], q: torch.Tensor, noise: Noise, position: int) -> Verdict:
        n = len(ids)
        for i, token in enumerate(ids):
            accept = ratio(p, q, ids, i) if ratio else float(p[i, token] / q[i, token])
            if not noise.bernoulli(accept, "accept", position + i):
                rest = residual(p, q, i) if residual else (p[i] - q[i]).clamp(min=0.0)
                return Verdict((*ids[:i], noise.categorical(rest, "residual", position + i)), i)
        last = (p[n] - q[n]).clamp(min=0.0) if len(q) > n else p[n]
        if bonus:
            last = bonus(p, q, n)
        return Verdict((*ids, noise.categorical(last, "residual", position + n)), n)

    return rule


def test_the_rewritten_rejection_is_right_before_it_is_broken(monkeypatch: Patch) -> None:
    monkeypatch.setattr(verify, "verify_rejection", rejection_with())
    assert error(tli, "rejection", world_named("subset")) < 1e-12
    assert error(slrs, "rejection", world_named("no token in common")) < 1e-12


WRONG_REJECTIONS = {
    "residual is p": rejection_with(residual=lambda p, q, i: p[i]),
    "residual is |p - q|": rejection_with(residual=lambda p, q, i: (p[i] - q[i]).abs()),
    "residual of the next row": rejection_with(
        residual=lambda p, q, i: (p[min(i + 1, len(p) - 1)] - q[i]).clamp(min=0.0) + 1e-300
    ),
    "rows off by one": rejection_with(ratio=lambda p, q, ids, i: float(p[i + 1, ids[i]] / q[i, ids[i]])),
    "p / q of another token": rejection_with(
        ratio=lambda p, q, ids, i: float(p[i, ids[0]] / q[i, ids[0]].clamp(min=1e-9))
    ),
    "accept with p instead of p / q": rejection_with(ratio=lambda p, q, ids, i: float(p[i, ids[i]])),
    "a little too lenient": rejection_with(
        ratio=lambda p, q, ids, i: 1.05 * float(p[i, ids[i]] / q[i, ids[i]])
    ),
    "bonus of the row before": rejection_with(bonus=lambda p, q, n: p[max(n - 1, 0)]),
}


@pytest.mark.parametrize("name", WRONG_REJECTIONS)
def test_wrong_rejection(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(verify, "verify_rejection", WRONG_REJECTIONS[name])
    assert error(tli, "rejection", world_named("subset")) > SEEN


def test_declined_draw_ignored(monkeypatch: Patch) -> None:
    monkeypatch.setattr(verify, "verify_rejection", rejection_with(bonus=lambda p, q, n: p[n]))
    assert error(slrs, "rejection", world_named("no token in common")) > SEEN


def block_with(
    accept: str = "right", residual: str = "right", attempt: Callable[[int], int] = int
) -> Callable[..., Verdict]:
    """Block verification written out again, right or with one part wrong."""

    def rule(p: torch.Tensor, ids: Sequence[int], q: torch.Tensor, noise: Noise, position: int) -> Verdict:
        n = len(ids)
        w = [1.0]
        for i, token in enumerate(ids):
            w.append(min(1.0, w[-1] * float(p[i, token] / q[i, token])))
        for i in range(n, -1, -1):
            row = q[i] if i < len(q) else torch.zeros_like(p[i])
            rest = (w[i] * p[i] - row).clamp(min=0.0)
            h = float(rest.sum()) / (float(rest.sum()) + 1.0 - w[i]) if float(rest.sum()) > 0 else 0.0
            h = {"right": h, "w": w[i], "no row": w[i] if i == n else h}[accept]
            if i == 0 or noise.bernoulli(h, "accept", position, i):
                shown = {"right": rest, "token-wise": (p[i] - row).clamp(min=0.0)}[residual]
                shown = shown if float(shown.sum()) > 0 else p[i]
                return Verdict((*ids[:i], noise.categorical(shown, "residual", position + i)), i)
        raise AssertionError

    return rule


def test_the_rewritten_block_rule_is_right_before_it_is_broken(monkeypatch: Patch) -> None:
    monkeypatch.setattr(verify, "verify_block", block_with())
    assert error(tli, "block", world_named("long blocks")) < 1e-12
    assert error(slrs, "block", world_named("no token in common")) < 1e-12


@pytest.mark.parametrize(
    ("rule", "make", "world"),
    [
        (block_with(accept="w"), tli, "long blocks"),
        (block_with(residual="token-wise"), tli, "subset"),
        (block_with(accept="no row"), slrs, "no token in common"),
    ],
    ids=["accepts with w", "residual without w", "declined draw counted as accepted"],
)
def test_wrong_block(rule: Callable[..., Verdict], make: Make, world: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(verify, "verify_block", rule)
    assert error(make, "block", world_named(world)) > SEEN


def test_correction_drawn_afresh(monkeypatch: Patch) -> None:
    """Exact match must emit the target's own draw, not another one."""

    def afresh(p: torch.Tensor, ids: Sequence[int], noise: Noise, position: int) -> Verdict:
        for i, token in enumerate(ids):
            if noise.categorical(p[i], "target", position + i) != token:
                return Verdict((*ids[:i], noise.categorical(p[i], "residual", position + i)), i)
        return Verdict((*ids, noise.categorical(p[len(ids)], "target", position + len(ids))), len(ids))

    monkeypatch.setattr(verify, "verify_exact", afresh)
    assert error(lookup, "exact", world_named("ambiguous segmentations")) > SEEN


def test_greedy_without_correction(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        verify, "verify_greedy", lambda argmax, ids: Verdict((*ids, argmax[len(ids)]), len(ids))
    )
    assert error(tli, "exact", world_named("greedy request")) > SEEN


def test_processors_at_the_first_position_only(monkeypatch: Patch) -> None:
    right = sampling.probabilities
    monkeypatch.setattr(
        sampling,
        "probabilities",
        lambda logits, params, history, proposal=(): torch.cat(
            [right(row.unsqueeze(0), params, history) for row in logits]
        ),
    )
    assert error(tli, "rejection", world_named("top-p, min-p, presence and frequency penalties, bias")) > SEEN
    assert error(slem, "exact", world_named("min_tokens and allowed ids")) > SEEN


def test_no_processors_behind_the_first_position(monkeypatch: Patch) -> None:
    right = sampling.probabilities

    def first_only(logits, params, history, proposal=()):  # type: ignore[no-untyped-def]
        rest = [torch.softmax(row, dim=-1).unsqueeze(0) for row in logits[1:]]
        return torch.cat([right(logits[:1], params, history), *rest])

    monkeypatch.setattr(sampling, "probabilities", first_only)
    assert error(tli, "rejection", world_named("top-k, repetition penalty")) > SEEN


def test_q_not_renormalised(monkeypatch: Patch) -> None:
    """q of the draft's whole vocabulary where the draws were from the intersection."""
    right = TokenMap.q
    monkeypatch.setattr(TokenMap, "q", lambda self, rows: 0.8 * right(self, rows))
    assert error(tli, "rejection", world_named("subset")) > SEEN


def test_mass_of_duplicates_dropped(monkeypatch: Patch) -> None:
    def last_one_wins(self: TokenMap, rows: torch.Tensor) -> torch.Tensor:
        q = rows.new_zeros(len(rows), self.target_vocab_size)
        q[:, self.target_ids] = rows
        return q

    monkeypatch.setattr(TokenMap, "q", last_one_wins)
    assert error(tli, "rejection", world_named("duplicate bytes")) > SEEN
    assert error(tli, "block", world_named("duplicate bytes")) > SEEN


def test_q_of_another_temperature(monkeypatch: Patch) -> None:
    def hotter(self: TokenMap, rows: torch.Tensor) -> torch.Tensor:
        return right(self, (rows**0.5) / (rows**0.5).sum(dim=-1, keepdim=True))

    right = TokenMap.q
    monkeypatch.setattr(TokenMap, "q", hotter)
    assert error(tli, "rejection", world_named("hot draft that gives up early")) > SEEN


class Altered:
    """A method whose proposals are changed on their way out."""

    name = "altered"

    def __init__(self, method: Method, change: Callable[[Proposal], Proposal]) -> None:
        self._method = method
        self._change = change

    def start(self, prompt: Prompt) -> Altered:
        self._proposer = self._method.start(prompt)
        return self

    def propose(self, max_target_tokens: int) -> ProposalGenerator:
        return self._change((yield from self._proposer.propose(max_target_tokens)))

    def observe(self, token_ids: Sequence[int]) -> None:
        self._proposer.observe(token_ids)


def altered(make: Make, change: Callable[[Proposal], Proposal]) -> Make:
    return lambda world: Altered(make(world), change)


def test_psi_truncated() -> None:
    def truncate(proposal: Proposal) -> Proposal:
        """Small psi taken for zero, although the sampler proposes such tokens."""
        if proposal.q is None:
            return proposal
        q = proposal.q.masked_fill(proposal.q < 0.25, 0.0)
        for i, token in enumerate(proposal.token_ids):
            q[i, token] = proposal.q[i, token]
        return replace(proposal, q=q)

    assert error(altered(slrs, truncate), "rejection", world_named("subset")) > SEEN


def test_row_of_the_declined_draw_dropped() -> None:
    def drop(proposal: Proposal) -> Proposal:
        n = len(proposal.token_ids)
        return proposal if proposal.q is None else replace(proposal, q=proposal.q[:n] if n else None)

    world = world_named("no token in common")
    assert error(altered(slrs, drop), "rejection", world) > SEEN
    assert error(altered(slrs, drop), "block", world) > SEEN


def test_declined_where_nothing_was_declined() -> None:
    def extend(proposal: Proposal) -> Proposal:
        return (
            proposal if proposal.q is None else replace(proposal, q=torch.cat([proposal.q, proposal.q[-1:]]))
        )

    assert error(altered(tli, extend), "rejection", world_named("subset")) > SEEN


def test_walk_and_psi_disagree(monkeypatch: Patch) -> None:
    """A sampler that follows another law than the psi it reports: the mode, as if it were a draw."""
    monkeypatch.setattr(SLRSProposer, "_choose", lambda self, psi, index: int(psi.psi.argmax()))
    assert error(slrs, "rejection", world_named("subset")) > SEEN


def test_draft_stops_on_the_drawn_token(monkeypatch: Patch) -> None:
    """Dropping a drawn token because *it* was improbable changes the law of what is proposed."""
    right = TableDraft._roll_out

    def drop(self: TableDraft, ask: Rollout, context: tuple[int, ...]) -> Drafted:
        drafted = right(self, ask, context)
        if drafted.rows is None:
            return drafted
        size = 0
        while size < len(drafted.token_ids) and drafted.rows[size].max() == _of(drafted, ask, size):
            size += 1
        return Drafted(drafted.token_ids[:size], drafted.rows[:size] if size else None)

    def _of(drafted: Drafted, ask: Rollout, i: int) -> torch.Tensor:
        assert ask.allowed is not None
        assert drafted.rows is not None
        return drafted.rows[i, ask.allowed.tolist().index(drafted.token_ids[i])]

    monkeypatch.setattr(TableDraft, "_roll_out", drop)
    assert error(tli, "rejection", world_named("subset")) > SEEN


def test_end_token_leaks(monkeypatch: Patch) -> None:
    monkeypatch.setattr(laws, "until_finished", lambda world, output, token_ids: tuple(token_ids))
    assert error(slem, "exact", world_named("stop id that is text")) > SEEN
    assert error(tli, "rejection", world_named("blocks end in the middle")) > SEEN


def whole(make: Make, rule: str) -> None:
    world = world_named("long blocks")
    laws.whole_law(replace(world, params=replace(world.params, max_tokens=3)), make(world), laws.RULES[rule])


def test_draws_made_twice(monkeypatch: Patch) -> None:
    right = Rollouts.observe

    def forget(self: Rollouts, token_ids: Sequence[int]) -> None:
        right(self, token_ids)
        self._num_draws = 0

    monkeypatch.setattr(Rollouts, "observe", forget)
    with pytest.raises(AssertionError, match="was made twice"):
        whole(tli, "block")


def test_failed_tests_of_a_block_drawn_again(monkeypatch: Patch) -> None:
    """Block's tests named by their token's position would meet those of the next step."""
    right = block_with()

    class ByPosition:
        def __init__(self, noise: Noise) -> None:
            self.categorical = noise.categorical
            self._noise = noise

        def bernoulli(self, probability: float, stream: str, position: int, attempt: int = 0) -> bool:
            return self._noise.bernoulli(probability, stream, position + attempt, 0)  # type: ignore[arg-type]

    monkeypatch.setattr(
        verify,
        "verify_block",
        lambda p, ids, q, noise, position: right(p, ids, q, ByPosition(noise), position),
    )
    with pytest.raises(AssertionError, match="was made twice"):
        whole(tli, "block")


def test_stable_ids_that_are_not(monkeypatch: Patch) -> None:
    def all_stable(tokenizer, bridge, prompt):  # type: ignore[no-untyped-def]
        context = retokenized_context(tokenizer, bridge, prompt)
        right = context.append

        def append(ids: Sequence[int]) -> int:
            before = len(context.ids)
            right(ids)
            return min(before, len(context.ids))

        context.append = append  # type: ignore[method-assign]
        return context

    world = world_named("merges across the boundary")
    longer = replace(world, params=replace(world.params, max_tokens=12))

    def requests() -> None:
        for seed in range(20):
            noise = KeyedNoise(seed)
            laws.run_request(longer, slem(longer), laws.exact, noise, noise)

    requests()
    monkeypatch.setattr(slem_module, "retokenized_context", all_stable)
    with pytest.raises(AssertionError, match="ids that were called stable changed"):
        requests()
