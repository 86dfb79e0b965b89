"""SLRS in the paper's own form (Timor et al., arXiv 2502.05202, Algorithm 3): psi of one token at a time.

The sampler draws up to ``lookahead`` draft tokens and stops as soon as their text is no proper prefix of a
target token; it proposes the longest target token that the text begins with. psi(t) sums the probabilities of
all draft sequences that end in t, which may also run over its end. Their number doubles with every byte of t
where the draft has all pieces of it. So this is the reference for short tokens that
:mod:`~anydraft.methods.proposal_tree` is compared with, and no method of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anydraft.errors import TooManyRowsError
from anydraft.methods.proposal_tree import Path
from anydraft.methods.strings import StringMap
from anydraft.rules.noise import Noise

RowsOf = Callable[[Sequence[Path]], Sequence[torch.Tensor]]
"""The draft's next-token rows after some paths, [V_draft] each, summing to 1."""


class Segmentations:
    """The sampler and its psi after one context.

    Args:
        strings: of the pair of vocabularies.
        rows_of: asked for all the rows of one psi at once, and for each path only once.
        lookahead: the most draft tokens of a walk, at least 1; None: until the text is resolved.
        max_rows: the most draft rows that one psi may need.
    """

    def __init__(
        self, strings: StringMap, rows_of: RowsOf, lookahead: int | None = None, max_rows: int = 256
    ) -> None:
        self._strings = strings
        self._rows_of = rows_of
        self._lookahead = lookahead
        self._max_rows = max_rows
        self._rows: dict[Path, torch.Tensor] = {}

    @property
    def num_rows(self) -> int:
        """Draft rows asked for so far."""
        return len(self._rows)

    def draw(self, noise: Noise, position: int) -> int:
        """A proposed target id; -1 where the drawn text begins with no target token. The i-th draft token is
        the draw ("draft", ``position``, i)."""
        path: Path = ()
        text = b""
        while True:
            token = noise.categorical(self._row(path), "draft", position, len(path))
            data = self._strings.bridge.draft.tokens[token]
            if not data or not self._goes_on(text + data, len(path) + 1):
                return self._strings.after(text, token)
            path, text = (*path, token), text + data

    def psi(self, target_id: int) -> float:
        """The probability that :meth:`draw` gives ``target_id``.

        Raises:
            TooManyRowsError: it takes more than ``max_rows`` draft rows.
        """
        nodes = self.nodes(target_id)
        self._fetch([path for path, _ in nodes])
        mass: dict[Path, float] = {(): 1.0}
        total = 0.0
        for path, text in nodes:
            row = self._rows[path].to(torch.float64) * mass.get(path, 0.0)
            for d in self._inner(text, len(path)).tolist():
                mass[*path, d] = float(row[d])
                row[d] = 0.0
            leaves = self._strings.leaves(text)
            if leaves.default == target_id:
                total += float(row.sum() - row[leaves.draft_ids].sum())
            total += float(row[leaves.draft_ids[leaves.target_ids == target_id]].sum())
        return total

    def nodes(self, target_id: int) -> list[tuple[Path, bytes]]:
        """The paths, with their texts, whose rows psi of ``target_id`` needs: those that may still end in it.

        Raises:
            TooManyRowsError: there are more than ``max_rows``.
        """
        tokens = self._strings.bridge.target.tokens
        token = (tokens[target_id] if target_id < len(tokens) else None) or b""
        nodes: list[tuple[Path, bytes]] = [((), b"")]
        for path, text in nodes:
            if not token:
                break  # a control token is proposed at once or not at all, a padded row never
            for d in self._inner(text, len(path)).tolist():
                longer = text + (self._strings.bridge.draft.tokens[d] or b"")
                if token.startswith(longer) or self._strings.longest(longer) == target_id:
                    nodes.append(((*path, d), longer))
            if len(nodes) > self._max_rows:
                raise TooManyRowsError(
                    f"psi of target token {target_id} ({token!r}) takes more than {self._max_rows} draft rows in "
                    "the paper's form; use slrs, whose tree is bounded, or a smaller lookahead"
                )
        return nodes

    def _goes_on(self, text: bytes, length: int) -> bool:
        return (self._lookahead is None or length < self._lookahead) and self._strings.extends(text)

    def _inner(self, text: bytes, length: int) -> torch.Tensor:
        """Draft ids after which a walk that stands at ``text``, ``length`` tokens long, goes on."""
        if self._lookahead is not None and length + 1 >= self._lookahead:
            return torch.empty(0, dtype=torch.int64)
        return self._strings.inner(text)

    def _row(self, path: Path) -> torch.Tensor:
        self._fetch([path])
        return self._rows[path]

    def _fetch(self, paths: Sequence[Path]) -> None:
        missing = [path for path in paths if path not in self._rows]
        if missing:
            self._rows.update(zip(missing, self._rows_of(missing), strict=True))
