"""Acceptance of the first drafted token, worked out from probabilities; no draws. Used by sampling.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from anydraft.engine import Engine
from anydraft.errors import TooManyRowsError
from anydraft.methods.base import DraftBackend, Expand, Prompt
from anydraft.methods.proposal_tree import Node, Path, Psi, grow
from anydraft.methods.request import retokenized_context
from anydraft.methods.segmentations import Segmentations
from anydraft.methods.strings import StringMap
from anydraft.methods.tli import intersection_map
from anydraft.vocab.translate import Translator

TEMPERATURES = (1.0, 0.7, 0.5, 0.3)
TREE_TEMPERATURES = (1.0, 0.7)
EPSILONS = (0.3, 0.1, 0.03, 0.01)
LOOKAHEADS = (2, 3)
_MOST_ROWS = 64
_GREEDY_TOKENS = 5
_PAPER_TOKENS = 8


@dataclass(frozen=True)
class Measured:
    """One method at one position: acceptance and its price."""

    acceptance: float
    rows: float = 1.0
    forwards: float = 1.0
    refused: float = 0.0
    """Share of the target's probability on tokens whose psi takes too many rows."""


Key = tuple[str, str]
"""(method, its settings)."""


@dataclass
class DraftRows:
    """The draft's rows after one context, each asked for once at temperature 1; other temperatures follow."""

    backend: DraftBackend
    key: str
    context: Sequence[int]
    _rows: dict[Path, torch.Tensor] = field(default_factory=dict)
    _tempered: dict[tuple[Path, float], torch.Tensor] = field(default_factory=dict)

    def at(self, paths: Sequence[Path], temperature: float = 1.0) -> list[torch.Tensor]:
        missing = tuple(path for path in dict.fromkeys(paths) if path not in self._rows)
        if missing:
            stable = len(self.context) if self._rows else 0
            answer = self.backend.answer({self.key: Expand(self.context, stable, missing)})[self.key]
            assert isinstance(answer, torch.Tensor)
            self._rows.update(zip(missing, answer.double(), strict=True))
        return [self._at(path, temperature) for path in paths]

    def _at(self, path: Path, temperature: float) -> torch.Tensor:
        if (path, temperature) not in self._tempered:
            self._tempered[path, temperature] = _tempered(self._rows[path], temperature)
        return self._tempered[path, temperature]


def _tempered(row: torch.Tensor, temperature: float) -> torch.Tensor:
    if temperature == 1.0:
        return row
    powered = (row / row.max()) ** (1.0 / temperature)
    return powered / powered.sum()


class FirstPosition:
    """Every method's acceptance at single positions of a pair."""

    def __init__(self, engine: Engine) -> None:
        pair = engine.pair
        assert pair.bridge is not None
        assert pair.backend is not None
        self._backend = pair.backend
        self._bridge = pair.bridge
        self._size = pair.runner.vocab_size
        self._strings = StringMap(pair.bridge, self._size)
        self._tokens = intersection_map(pair.bridge, self._size)
        self._translator = Translator(pair.tokenizer, pair.bridge.draft, pair.bridge)

    def measure(
        self, prompt: Prompt, output: Sequence[int], p: torch.Tensor, key: str, *, paper: bool
    ) -> dict[Key, Measured]:
        """All methods after ``output``.

        Args:
            p: float64 [V], the target's distribution there.
            key: of the draft's row of keys and values; contexts of one prompt share it.
            paper: whether to work out the paper's form too, which is slow.
        """
        context = retokenized_context(self._backend.tokenizer, self._bridge, prompt)
        context.append(output)
        rows = DraftRows(self._backend, key, list(context.ids))
        tail = [*prompt.target_ids[-16:], *output][-16:]
        slem = self._slem(rows, p, tail)
        found = {**self._token_rule(rows, p), ("slem", "greedy"): slem}
        laws: dict[float, torch.Tensor] = {}
        for temperature in TREE_TEMPERATURES:
            for epsilon in EPSILONS:
                psi, measured = self._tree(rows, temperature, epsilon, p)
                found["slrs", f"epsilon {epsilon:g}, draft at {temperature:g}"] = measured
                if epsilon == 0.1:
                    found["slrs coupled", f"epsilon 0.1, draft at {temperature:g}"] = Measured(
                        coupled(p, psi.psi), measured.rows, measured.forwards
                    )
                    if temperature == 1.0:
                        mode = int(psi.psi.argmax())
                        found["slrs", "epsilon 0.1, greedy"] = Measured(
                            float(p[mode]), measured.rows, measured.forwards
                        )
                if epsilon == 0.01:
                    laws[temperature] = psi.psi
        for temperature in TEMPERATURES:
            law = laws[temperature] if temperature in laws else self._tree(rows, temperature, 0.01, p)[0].psi
            found["slem", f"draft at {temperature:g}"] = Measured(
                float((p * law).sum()), slem.rows, slem.forwards
            )
        if paper:
            found["slrs, there", "epsilon 0.01, draft at 1"] = found["slrs", "epsilon 0.01, draft at 1"]
            for lookahead in LOOKAHEADS:
                found["paper", f"lookahead {lookahead}"] = self._paper(rows, lookahead, p, laws[1.0])
        return found

    def _token_rule(self, rows: DraftRows, p: torch.Tensor) -> dict[Key, Measured]:
        (root,) = rows.at([()])
        assert self._tokens.allowed is not None
        allowed = self._tokens.allowed
        best = self._tokens.to_target([int(allowed[root[allowed].argmax()])])[0]
        found: dict[Key, Measured] = {("tli", "greedy"): Measured(float(p[best]))}
        for temperature in TEMPERATURES:
            row = rows.at([()], temperature)[0][allowed]
            q_sub = self._tokens.q(row[None])[0]
            q = q_sub / q_sub.sum()
            found["tli", f"draft at {temperature:g}"] = Measured(float(torch.minimum(p, q).sum()))
            if temperature in TREE_TEMPERATURES:
                found["tli coupled", f"draft at {temperature:g}"] = Measured(coupled(p, q))
                common = float(torch.minimum(p, q_sub).sum())
                left = (p - q_sub).clamp(min=0.0)
                guess = float(left.max() / left.sum()) if float(left.sum()) > 0.0 else 0.0
                # What a draw without a target token proposes is at best the residual's likeliest token.
                most = common + max(0.0, 1.0 - float(q_sub.sum())) * guess
                found["hybrid, at most", f"draft at {temperature:g}"] = Measured(most)
        return found

    def _slem(self, rows: DraftRows, p: torch.Tensor, tail: list[int]) -> Measured:
        path: Path = ()
        for _ in range(_GREEDY_TOKENS):
            (row,) = rows.at([path])
            path = (*path, int(row.argmax()))
            if not self._bridge.draft.tokens[path[-1]]:
                break
        ids = self._translator.translate(tail, path)
        if not ids:
            return Measured(0.0, len(path), len(path))
        # The price of the first target token: the draft tokens until its last byte is there.
        sizes = [len(self._bridge.draft.tokens[d] or b"") for d in path]
        wanted = len(self._bridge.target.tokens[ids[0]] or b"")
        needed = next((n for n in range(1, len(path)) if sum(sizes[:n]) >= wanted), len(path))
        return Measured(float(p[ids[0]]), needed, needed)

    def _tree(
        self, rows: DraftRows, temperature: float, epsilon: float, p: torch.Tensor
    ) -> tuple[Psi, Measured]:
        tree = grow([Node((), b"", 1.0)], self._strings, self._size, epsilon, _MOST_ROWS)
        num_rows = forwards = 0
        try:
            paths = next(tree)
            while True:
                num_rows += len(paths)
                forwards += 1
                paths = tree.send(rows.at(paths, temperature))
        except StopIteration as stop:
            psi: Psi = stop.value
        return psi, Measured(float(torch.minimum(p, psi.psi).sum()), num_rows, forwards)

    def _paper(self, rows: DraftRows, lookahead: int, p: torch.Tensor, tree: torch.Tensor) -> Measured:
        """Exact for the likeliest tokens; the others' psi is the proposal tree's at epsilon 0.01."""
        exact = Segmentations(self._strings, rows.at, lookahead, _MOST_ROWS)
        others = torch.minimum(p, tree)
        total = needed = mass = refused = 0.0
        for target_id in p.topk(_PAPER_TOKENS).indices.tolist():
            others[target_id] = 0.0
            try:
                psi = exact.psi(target_id)
            except TooManyRowsError:
                refused += float(p[target_id])
                continue
            total += min(float(p[target_id]), psi)
            needed += psi * len(exact.nodes(target_id))
            mass += psi
        num_rows = needed / mass if mass else 1.0
        return Measured(total + float(others.sum()), num_rows, float(lookahead), refused)


def coupled(p: torch.Tensor, q: torch.Tensor) -> float:
    """Probability that exponential races over p and q on the same noise have one winner: the sum over t of
    1 / sum_v max(p_v / p_t, q_v / q_t). Races of q without its missing mass, as the engine runs them."""
    q = q / q.sum()
    both = (p > 0.0) & (q > 0.0)
    mine, theirs = p[both], q[both]
    ratio, order = (mine / theirs).sort()
    mine, theirs = mine[order], theirs[order]
    # max(p_v, r q_v) is r q_v up to the ratio r = p_t / q_t, and p_v beyond it.
    above = 1.0 - mine.cumsum(0)
    below = theirs.cumsum(0) + max(0.0, 1.0 - float(theirs.sum()))
    return float((mine / (above + ratio * below)).sum())
