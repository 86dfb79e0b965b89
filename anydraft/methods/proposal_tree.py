"""The law of the target token that a draft's text begins with, by a tree of draft tokens.

A node is a path of draft tokens with its text u (what is not yet resolved to target tokens) and its
mass, the probability that the draft goes there. A draft token d leads from it to s = u + bytes(d). While
s is itself a proper prefix of a target token, its mass is at least epsilon and rows are left, it becomes a
child; else it is a leaf that resolves to the longest target token that s begins with (nothing, if there
is none). psi(t), the sum of the leaf masses that resolve to t, is exactly the law of "walk down drawing
draft tokens, stop at a leaf, propose its token": what is a node depends on probabilities, never on draws.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch

from anydraft.methods.strings import StringMap

Path = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """``path``: draft ids after the context; ``text``: their bytes beyond the target tokens so far."""

    path: Path
    text: bytes
    mass: float


@dataclass(frozen=True, eq=False)
class Psi:
    """The law of the next target token.

    Attributes:
        psi: float64 [V_target]; may sum to less than 1.
        nothing: the rest: the probability that the text begins with no target token.
    """

    psi: torch.Tensor
    nothing: float
    _leaves: tuple[Node, ...] = ()
    _spread: tuple[tuple[Node, torch.Tensor], ...] = ()

    def weights(self) -> torch.Tensor:
        """float64 [V_target + 1]: psi, and last the mass of nothing."""
        return torch.cat([self.psi, self.psi.new_tensor([self.nothing])])

    def beyond(self, target_id: int, strings: StringMap, epsilon: float) -> list[Node]:
        """The leaves that resolved to ``target_id`` and whose text goes on behind it, as roots of the next
        position's tree, each with its share of psi(target_id); those with a share below epsilon are left
        out."""
        total = float(self.psi[target_id])
        size = len(strings.bridge.target.tokens[target_id] or b"")
        found = [leaf for leaf in self._leaves if leaf.mass >= epsilon * total]
        for node, masses in self._spread:
            for d in torch.nonzero((masses >= epsilon * total) & (masses > 0.0)).flatten().tolist():
                data = strings.bridge.draft.tokens[d]
                if data:
                    found.append(Node((*node.path, d), node.text + data, float(masses[d])))
        return [
            Node(leaf.path, leaf.text[size:], leaf.mass / total)
            for leaf in found
            if len(leaf.text) > size and strings.longest(leaf.text) == target_id
        ]


@dataclass
class _Sum:
    psi: torch.Tensor
    nothing: float = 0.0
    leaves: list[Node] = field(default_factory=list)
    spread: list[tuple[Node, torch.Tensor]] = field(default_factory=list)

    def add(self, target_id: int, mass: float) -> None:
        if target_id < 0:
            self.nothing += mass
        else:
            self.psi[target_id] += mass


def grow(
    roots: Sequence[Node], strings: StringMap, target_vocab_size: int, epsilon: float, max_rows: int
) -> Generator[list[Path], Sequence[torch.Tensor], Psi]:
    """Grow one position's tree: yields the paths of one depth, is sent the draft's next-token rows there
    ([V_draft] each, summing to 1), and returns psi.

    Args:
        roots: where the position starts; their masses sum to 1.
        epsilon: the least mass of a node that is worth a row.
        max_rows: the most rows of the tree; the heaviest nodes of a depth come first.
    """
    total = _Sum(torch.zeros(target_vocab_size, dtype=torch.float64))
    level = list(roots)
    while level:
        level.sort(key=lambda node: -node.mass)
        room = max(max_rows, 0)
        wanted = [n for n in level if n.mass >= epsilon and n.mass > 0.0 and strings.extends(n.text)][:room]
        max_rows -= len(wanted)
        chosen = {id(node) for node in wanted}
        for node in level:
            if id(node) not in chosen:
                total.add(strings.longest(node.text), node.mass)
                total.leaves.append(node)
        if not wanted:
            break
        rows = yield [node.path for node in wanted]
        level = [
            child
            for node, row in zip(wanted, rows, strict=True)
            for child in _spread(node, row, strings, epsilon if max_rows > 0 else torch.inf, total)
        ]
    return Psi(total.psi, total.nothing, tuple(total.leaves), tuple(total.spread))


def _spread(node: Node, row: torch.Tensor, strings: StringMap, epsilon: float, total: _Sum) -> list[Node]:
    """Add the node's leaves to ``total``; its children are returned."""
    tokens = strings.bridge.draft.tokens
    masses = torch.zeros(len(tokens), dtype=torch.float64)
    masses[: len(row)] = row[: len(tokens)]
    masses *= node.mass
    children = []
    for d in torch.nonzero((masses >= epsilon) & (masses > 0.0)).flatten().tolist():
        data = tokens[d]
        if data and strings.extends(node.text + data):
            children.append(Node((*node.path, d), node.text + data, float(masses[d])))
            masses[d] = 0.0
    leaves = strings.leaves(node.text)
    resolved = masses[leaves.draft_ids]
    total.psi.index_add_(0, leaves.target_ids, resolved)
    total.add(leaves.default, max(0.0, float(masses.sum() - resolved.sum())))
    total.spread.append((node, masses))
    return children
