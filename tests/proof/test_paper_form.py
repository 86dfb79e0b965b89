"""SLRS in the paper's own form: psi of one token over all segmentations, and the lazy residual."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from anydraft.errors import TooManyRowsError
from anydraft.methods.proposal_tree import Node, Path
from anydraft.methods.segmentations import Segmentations
from anydraft.methods.strings import StringMap
from anydraft.rules import lazy
from anydraft.rules.noise import KeyedNoise, Noise
from tests.proof.catalogue import STRINGS, world_named
from tests.proof.enumeration import TapeNoise, distance, enumerate_law
from tests.proof.laws import finished, target_rows
from tests.proof.test_exact import case_id
from tests.proof.test_psi import grown, resolve
from tests.proof.worlds import TableDraft, ToyTokenizer, World

TOLERANCE = 1e-12
SEEN = 1e-4
Patch = pytest.MonkeyPatch


def segmentations(
    world: World, lookahead: int | None = None, max_rows: int = 10_000, output: Sequence[int] = ()
) -> Segmentations:
    """After ``output``, with the draft at temperature 1."""
    draft = TableDraft(world.draft_table, world.draft)
    context = tuple(world.draft.encode(world.prompt)) + tuple(output)

    def rows_of(paths: Sequence[Path]) -> list[torch.Tensor]:
        return [draft.row(context + path, 1.0, None) for path in paths]

    strings = StringMap(world.bridge, world.target_table.vocab_size)
    return Segmentations(strings, rows_of, lookahead, max_rows)


def walk_law(world: World, lookahead: int | None) -> dict[object, float]:
    """The law of what the sampler proposes, by each of its walks."""
    return enumerate_law(lambda noise: segmentations(world, lookahead).draw(noise, 0))


@pytest.mark.parametrize("lookahead", [1, 2, 3, None])
@pytest.mark.parametrize("world", STRINGS, ids=case_id)
def test_psi_is_the_law_of_the_walk(world: World, lookahead: int | None) -> None:
    psi = psi_law(world, lookahead)
    walks = walk_law(world, lookahead)
    walks.pop(-1, None)
    assert distance(psi, walks) < TOLERANCE


def psi_law(world: World, lookahead: int | None) -> dict[object, float]:
    found = segmentations(world, lookahead)
    return {t: found.psi(t) for t in range(len(world.target.vocabulary))}


@pytest.mark.parametrize("world", STRINGS, ids=case_id)
def test_without_bounds_psi_is_that_of_the_proposal_tree(world: World) -> None:
    root = Node(tuple(world.draft.encode(world.prompt)), b"", 1.0)
    tree, _ = grown(world, [root], epsilon=0.0, max_rows=10_000)
    assert distance(dict(enumerate(tree.psi.tolist())), psi_law(world, None)) < TOLERANCE


@pytest.mark.parametrize("world", STRINGS[:6], ids=case_id)
def test_the_walk_proposes_what_its_text_begins_with(world: World) -> None:
    """The token by looking at each; the walk ends where no longer token can come of it."""
    tokens = [t for _, t in world.target.vocabulary.text_items()]

    class Watched(TapeNoise):
        def categorical(self, weights: torch.Tensor, stream: str, position: int, attempt: int = 0) -> int:
            drawn.append(super().categorical(weights, stream, position, attempt))
            return drawn[-1]

    for tape in itertools.product(range(2), repeat=3):
        drawn: list[int] = []
        proposed = segmentations(world).draw(Watched(tape), 0)
        data = [world.draft.vocabulary.tokens[d] for d in drawn]
        if None in data:
            continue
        text = b"".join(d for d in data if d)
        assert proposed == resolve(world, text)
        before = text[: len(text) - len(data[-1] or b"")]
        assert not any(t.startswith(text) and t != text for t in tokens)
        assert len(drawn) == 1 or any(t.startswith(before) and t != before for t in tokens)


def single_token_law(
    world: World, lookahead: int | None, output: tuple[int, ...] = ()
) -> dict[object, float]:
    """The exact law of the emitted token: acceptance and one round of the residual by enumeration, the endless
    rounds by the geometric series."""
    p = target_rows(world, output)[0]
    psi = segmentations(world, lookahead, output=output)

    def first(noise: TapeNoise) -> tuple[str, int]:
        proposed = psi.draw(noise, 0)
        accepted = lazy.accepts(p, proposed, psi.psi, noise, 0)
        return ("accepted", proposed) if accepted else ("rejected", -1)

    def one_round(noise: TapeNoise) -> tuple[str, int]:
        token, kept = lazy.residual_round(p, psi.psi, noise, 0, 1)
        return ("kept", token) if kept else ("again", -1)

    start, rounds = enumerate_law(first), enumerate_law(one_round)
    rejected, again = start.get(("rejected", -1), 0.0), rounds.get(("again", -1), 0.0)
    law: dict[object, float] = {}
    for token in range(len(p)):
        kept = rounds.get(("kept", token), 0.0) / (1.0 - again) if again < 1.0 else 0.0
        law[token] = start.get(("accepted", token), 0.0) + rejected * kept
    return law


def outputs(world: World) -> list[tuple[int, ...]]:
    """The first few outputs that go on."""
    ids = [i for i in range(len(world.target.vocabulary)) if i not in world.forbidden][:3]
    short = [(), *((i,) for i in ids)]
    return [output for output in short if not finished(world, output)]


def error(world: World, lookahead: int | None) -> float:
    return max(
        distance(
            single_token_law(world, lookahead, output),
            dict(enumerate(target_rows(world, output)[0].tolist())),
        )
        for output in outputs(world)
    )


SAMPLED = [world for world in STRINGS if not world.params.greedy]


@pytest.mark.parametrize("lookahead", [1, 2, None])
@pytest.mark.parametrize("world", SAMPLED, ids=case_id)
def test_the_law_is_the_targets(world: World, lookahead: int | None) -> None:
    assert error(world, lookahead) < TOLERANCE


class _Unfinished(Exception):
    pass


class Impatient:
    """Noise for at most so many rounds."""

    def __init__(self, noise: Noise, rounds: int) -> None:
        self._noise = noise
        self._rounds = rounds

    def categorical(self, weights: torch.Tensor, stream: str, position: int, attempt: int = 0) -> int:
        if attempt > self._rounds and stream == "residual":
            raise _Unfinished
        return self._noise.categorical(weights, stream, position, attempt)  # type: ignore[arg-type]

    def bernoulli(self, probability: float, stream: str, position: int, attempt: int = 0) -> bool:
        return self._noise.bernoulli(probability, stream, position, attempt)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", [SAMPLED[0], world_named("no token in common")], ids=case_id)
def test_the_loop_is_the_rounds_one_after_another(world: World) -> None:
    """Four rounds of the whole rule enumerated, each draw named once, and the rest of the series."""
    p = target_rows(world, ())[0]
    psi = segmentations(world)

    def program(noise: TapeNoise) -> int:
        try:
            return lazy.verify_lazy(p, psi.draw(noise, 0), psi.psi, Impatient(noise, 4), 0)[0]
        except _Unfinished:
            return -1

    law = enumerate_law(program)
    unfinished = law.pop(-1, 0.0)
    assert unfinished > 0.0
    left = torch.tensor([max(0.0, float(p[t]) - psi.psi(t)) for t in range(len(p))], dtype=torch.float64)
    for token, share in enumerate((left / left.sum()).tolist()):
        law[token] = law.get(token, 0.0) + unfinished * share
    assert distance(law, dict(enumerate(p.tolist()))) < TOLERANCE


def test_equal_laws_end_although_rounding_leaves_nothing_to_keep() -> None:
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)

    class Rejects(KeyedNoise):
        def bernoulli(self, probability: float, stream: str, position: int, attempt: int = 0) -> bool:
            return False

    token, accepted = lazy.verify_lazy(p, 0, lambda t: float(p[t]) * (1.0 + 1e-12), Rejects(3), 0)
    assert token in (0, 1)
    assert not accepted


def test_many_segmentations_are_refused_before_any_row_is_asked_for() -> None:
    world = replace(
        world_named("subset"),
        name="a run of 17",
        target=ToyTokenizer(["a", 17 * "a"]),
        draft=ToyTokenizer([n * "a" for n in range(1, 18)]),
    )
    asked: list[Sequence[Path]] = []

    def rows_of(paths: Sequence[Path]) -> list[torch.Tensor]:
        asked.append(paths)
        return [torch.full((17,), 1 / 17, dtype=torch.float64) for _ in paths]

    strings = StringMap(world.bridge, 2)
    with pytest.raises(TooManyRowsError, match=r"target token 1 .* more than 256 draft rows .* use slrs"):
        Segmentations(strings, rows_of).psi(1)
    assert not asked
    assert Segmentations(strings, rows_of, max_rows=65_536).nodes(1)[-1][1] == 16 * b"a"
    assert len(Segmentations(strings, rows_of, max_rows=65_536).nodes(1)) == 65_536
    assert 0.0 < Segmentations(strings, rows_of, lookahead=2).psi(1) < 1.0
    assert len(asked) == 1


MISTAKES_WORLD = world_named("ambiguous segmentations")


def wrong_psi(change: Callable[[Segmentations, int, float], float], monkeypatch: Patch) -> None:
    right = Segmentations.psi
    monkeypatch.setattr(Segmentations, "psi", lambda self, t: change(self, t, right(self, t)))


def test_psi_truncated(monkeypatch: Patch) -> None:
    wrong_psi(lambda self, t, psi: psi if psi > 0.25 else 0.0, monkeypatch)
    assert error(world_named("subset"), None) > SEEN


def test_a_shorter_sum_than_the_sampler_walks(monkeypatch: Patch) -> None:
    """All walks of one token, where the sampler goes on to two."""
    right = Segmentations.nodes
    monkeypatch.setattr(Segmentations, "nodes", lambda self, t: right(self, t)[:1])
    assert error(MISTAKES_WORLD, None) > SEEN


def test_overshoot_forgotten(monkeypatch: Patch) -> None:
    """Only the sequences that spell the token exactly."""
    right = StringMap.leaves

    def exact_only(self: StringMap, text: bytes):  # type: ignore[no-untyped-def]
        leaves = right(self, text)
        tokens, drafts = self.bridge.target.tokens, self.bridge.draft.tokens
        pairs = zip(leaves.draft_ids.tolist(), leaves.target_ids.tolist(), strict=True)
        spelled = [text + (drafts[d] or b"") == tokens[t] for d, t in pairs]
        return replace(
            leaves,
            draft_ids=leaves.draft_ids[spelled],
            target_ids=leaves.target_ids[spelled],
            default=leaves.default,
        )

    monkeypatch.setattr(StringMap, "leaves", exact_only)
    assert error(MISTAKES_WORLD, None) > SEEN


def wrong_keep(keep: Callable[[float, float], float]) -> Callable[..., tuple[int, bool]]:
    def wrong(
        p: torch.Tensor, psi: lazy.PsiOf, noise: Noise, position: int, attempt: int
    ) -> tuple[int, bool]:
        token = noise.categorical(p, "residual", position, attempt)
        return token, noise.bernoulli(keep(float(p[token]), psi(token)), "accept", position, attempt)

    return wrong


KEEPS = {
    "always": lambda p, psi: 1.0,
    "1 - min(1, p / psi)": lambda p, psi: 1.0 - min(1.0, p / max(psi, 1e-300)),
    "(p - psi)+": lambda p, psi: max(0.0, p - psi),
}


def test_the_rewritten_round_is_right_before_it_is_broken(monkeypatch: Patch) -> None:
    monkeypatch.setattr(lazy, "residual_round", wrong_keep(lambda p, psi: max(0.0, 1.0 - psi / p)))
    assert error(MISTAKES_WORLD, None) < TOLERANCE


@pytest.mark.parametrize("name", KEEPS)
def test_kept_with_a_wrong_probability(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(lazy, "residual_round", wrong_keep(KEEPS[name]))
    assert error(MISTAKES_WORLD, None) > SEEN


def test_a_round_that_draws_the_same_names_again(monkeypatch: Patch) -> None:
    right = lazy.residual_round
    monkeypatch.setattr(
        lazy, "residual_round", lambda p, psi, noise, position, attempt: right(p, psi, noise, position, 1)
    )
    p = target_rows(MISTAKES_WORLD, ())[0]
    psi = segmentations(MISTAKES_WORLD)
    with pytest.raises(AssertionError, match="was made twice"):
        enumerate_law(lambda noise: lazy.verify_lazy(p, psi.draw(noise, 0), psi.psi, noise, 0))
