"""Every outcome of a random program, with its exact probability."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

import torch

Law = dict[tuple[int, ...], float]


class TapeNoise:
    """A :class:`~anydraft.rules.noise.Noise` that follows a tape of outcomes and notes the roads not taken.

    It also holds the program to the rule that a draw's name is used once.
    """

    def __init__(self, tape: tuple[int, ...], weight: float = 1.0) -> None:
        self._tape = tape
        self._taken: list[int] = []
        self._names: set[tuple[str, int, int]] = set()
        self.probability = weight
        self.forks: list[tuple[int, ...]] = []

    def _draw(self, probabilities: list[float], name: tuple[str, int, int]) -> int:
        assert name not in self._names, f"the draw {name} was made twice"
        self._names.add(name)
        depth = len(self._taken)
        if depth < len(self._tape):
            outcome = self._tape[depth]
        else:
            possible = [i for i, p in enumerate(probabilities) if p > 0.0]
            outcome = possible[0]
            self.forks += [(*self._taken, other) for other in possible[1:]]
        self._taken.append(outcome)
        self.probability *= probabilities[outcome]
        return outcome

    def categorical(self, weights: torch.Tensor, stream: str, position: int, attempt: int = 0) -> int:
        values = weights.double().tolist()
        total = sum(values)
        assert min(values, default=-1.0) >= 0.0, f"{values} are no weights"
        assert total > 0.0, f"{values} are no weights"
        return self._draw([v / total for v in values], (stream, position, attempt))

    def bernoulli(self, probability: float, stream: str, position: int, attempt: int = 0) -> bool:
        p = min(max(float(probability), 0.0), 1.0)
        return self._draw([1.0 - p, p], (stream, position, attempt)) == 1


def enumerate_law(program: Callable[[TapeNoise], Hashable]) -> dict[Hashable, float]:
    """The law of ``program``'s result over all draws from the noise it is given."""
    law: dict[Hashable, float] = defaultdict(float)
    tapes: list[tuple[int, ...]] = [()]
    while tapes:
        noise = TapeNoise(tapes.pop())
        result = program(noise)
        law[result] += noise.probability
        tapes += noise.forks
    return dict(law)


def distance(a: dict[Hashable, float], b: dict[Hashable, float]) -> float:
    """The largest difference of two laws at any outcome."""
    return max(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})
