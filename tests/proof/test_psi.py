"""psi is the law of walking down the tree and proposing what its leaf resolves to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from anydraft.methods.proposal_tree import Node, Path, Psi, grow
from anydraft.methods.strings import StringMap
from tests.proof.catalogue import STRINGS
from tests.proof.enumeration import TapeNoise, distance, enumerate_law
from tests.proof.test_exact import case_id
from tests.proof.worlds import TableDraft, World

CUTS = [(0.0, 1000), (0.05, 6), (0.2, 2), (0.3, 1)]


def grown(world: World, roots: Sequence[Node], epsilon: float, max_rows: int) -> tuple[Psi, set[Path]]:
    """psi and the paths that became nodes."""
    draft = TableDraft(world.draft_table, world.draft)
    strings = StringMap(world.bridge, world.target_table.vocab_size)
    tree = grow(roots, strings, world.target_table.vocab_size, epsilon, max_rows)
    nodes: set[Path] = set()
    try:
        paths = next(tree)
        while True:
            nodes.update(paths)
            paths = tree.send([draft.row(path, 1.0, None) for path in paths])
    except StopIteration as stop:
        return stop.value, nodes


def resolve(world: World, text: bytes) -> int:
    """The longest target token that ``text`` begins with, by looking at each; -1: none."""
    fitting = [(len(t), -i) for i, t in world.target.vocabulary.text_items() if text.startswith(t)]
    return -max(fitting)[1] if fitting else -1


@pytest.mark.parametrize(("epsilon", "max_rows"), CUTS)
@pytest.mark.parametrize("world", STRINGS, ids=case_id)
def test_psi_is_the_law_of_the_walk(world: World, epsilon: float, max_rows: int) -> None:
    psi, nodes = grown(world, [Node((), b"", 1.0)], epsilon, max_rows)
    assert len(nodes) <= max_rows
    draft = TableDraft(world.draft_table, world.draft)

    def walk(noise: TapeNoise) -> tuple[int, ...]:
        path: Path = ()
        text = b""
        while path in nodes:
            token = noise.categorical(draft.row(path, 1.0, None), "draft", len(path))
            data = world.draft.vocabulary.tokens[token]
            if data is None:
                mapped = int(world.bridge.draft_to_target[token])
                return (mapped if not path else resolve(world, text),)
            path, text = (*path, token), text + data
        return (resolve(world, text),)

    law = {(i,): p for i, p in enumerate(psi.psi.tolist()) if p} | (
        {(-1,): psi.nothing} if psi.nothing else {}
    )
    assert distance(law, enumerate_law(walk)) < 1e-12


@pytest.mark.parametrize("world", STRINGS, ids=case_id)
def test_what_goes_on_behind_a_token_keeps_its_share(world: World) -> None:
    """The leaves that overran a token, and no others, weighed by their share of its psi."""
    psi, _ = grown(world, [Node((), b"", 1.0)], 0.0, 1000)
    strings = StringMap(world.bridge, world.target_table.vocab_size)
    draft = TableDraft(world.draft_table, world.draft)
    for target_id in torch.nonzero(psi.psi).flatten().tolist():
        token = world.target.vocabulary.tokens[target_id]
        for node in psi.beyond(target_id, strings, 0.0) if token else []:
            mass, text = 1.0, b""
            for at, d in enumerate(node.path):
                mass *= float(draft.row(node.path[:at], 1.0, None)[d])
                text += world.draft.vocabulary.tokens[d] or b""
            assert node.text
            assert token + node.text == text
            assert resolve(world, text) == target_id
            assert node.mass == pytest.approx(mass / float(psi.psi[target_id]), abs=1e-12)


@pytest.mark.parametrize("world", STRINGS, ids=case_id)
def test_any_text_leads_where_it_should(world: World) -> None:
    strings = StringMap(world.bridge, world.target_table.vocab_size)
    tokens = [t for _, t in world.target.vocabulary.text_items()]
    for text in {b"", *(t[:n] for t in tokens for n in range(len(t) + 1))}:
        assert strings.extends(text) == any(t.startswith(text) and t != text for t in tokens)
        leaves = strings.leaves(text)
        found = dict(zip(leaves.draft_ids.tolist(), leaves.target_ids.tolist(), strict=True))
        for d, data in world.draft.vocabulary.text_items():
            assert found.get(d, leaves.default) == resolve(world, text + data) == strings.longest(text + data)
