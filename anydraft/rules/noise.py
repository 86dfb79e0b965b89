"""All randomness of a request, behind one protocol.

Every draw is named by (stream, position, attempt): the same request draws the same numbers whatever batch
it runs in, and a test can replace the source by one that enumerates every outcome. **A name is used once
a request**: a draw that is made again under the same name would be no fresh randomness, and rejection and
block verification are exact only with fresh draws.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch

Stream = Literal["target", "draft", "accept", "residual"]
_STREAMS: dict[str, int] = {"target": 0, "draft": 1, "accept": 2, "residual": 3}
_RACE, _RACE_UNMAPPED = 4, 5


class Noise(Protocol):
    """Draws named by (stream, position, attempt)."""

    def categorical(self, weights: torch.Tensor, stream: Stream, position: int, attempt: int = 0) -> int:
        """An index drawn in proportion to ``weights`` ([V], >= 0, positive sum; need not sum to 1)."""
        ...

    def bernoulli(self, probability: float, stream: Stream, position: int, attempt: int = 0) -> bool:
        """True with ``probability`` (values outside [0, 1] mean never / always)."""
        ...


class KeyedNoise:
    """Counter-based noise (Philox): a pure function of (seed, stream, position, attempt)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _philox(self, stream: int, position: int, attempt: int) -> np.random.Philox:
        return np.random.Philox(key=self.seed % 2**64, counter=[0, attempt, position, stream])

    def uniform(self, stream: Stream, position: int, attempt: int = 0) -> float:
        """A number in [0, 1), 53 random bits."""
        return float(self._philox(_STREAMS[stream], position, attempt).random_raw() >> 11) * 2.0**-53

    def categorical(self, weights: torch.Tensor, stream: Stream, position: int, attempt: int = 0) -> int:
        cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
        u = self.uniform(stream, position, attempt) * float(cumulative[-1])
        index = int(torch.searchsorted(cumulative, u, right=True))
        if index < len(weights) and float(weights[index]) > 0.0:
            return index
        # Rounding of the product reached the total (or a parallel scan was not monotone).
        return int(torch.nonzero(weights)[-1])

    def bernoulli(self, probability: float, stream: Stream, position: int, attempt: int = 0) -> bool:
        return self.uniform(stream, position, attempt) < probability


class CoupledNoise(KeyedNoise):
    """Noise for coupled sampling: the target's draw at an output position is an exponential race.

    Token v at position t arrives at time E(seed, t, v) / p(v), E standard exponential; the first wins,
    which is a draw from p (the Gumbel-max trick). The draw depends on seed, position and p alone, so the
    same seed gives the same text with or without a draft. A draft that runs the *same* race over its own
    probabilities (:meth:`for_draft`) often has the same winner: with probability at least
    (1 - TV) / (1 + TV) for the total variation distance TV of p and q (Daliri et al., arXiv 2408.07978).
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._kept: dict[tuple[int, int], torch.Tensor] = {}

    def arrivals(self, position: int, size: int) -> torch.Tensor:
        """E(seed, position, v) for v < ``size``, float64 [size]; the same numbers whatever the size."""
        return self._exponentials(_RACE, position, size)

    def own_arrivals(self, position: int, size: int) -> torch.Tensor:
        """The same for draft ids that stand for no target token."""
        return self._exponentials(_RACE_UNMAPPED, position, size)

    def _exponentials(self, stream: int, position: int, size: int) -> torch.Tensor:
        kept = self._kept.get((stream, position))
        if kept is None or len(kept) < size:
            bits = self._philox(stream, position, 0).random_raw(size) >> np.uint64(12)
            uniform = torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-52)  # neither 0 nor 1
            kept = -torch.log(uniform)
            if len(self._kept) >= 32:
                self._kept.clear()
            self._kept[stream, position] = kept
        return kept[:size]

    def categorical(self, weights: torch.Tensor, stream: Stream, position: int, attempt: int = 0) -> int:
        if stream != "target":
            return super().categorical(weights, stream, position, attempt)
        return _winner(weights, self.arrivals(position, len(weights)))

    def for_draft(self, target_ids: torch.Tensor) -> DraftRace:
        """The same race for a draft row whose entry j stands for target id ``target_ids[j]`` (-1: none);
        ``target_ids`` is int64, as long as the row or longer."""
        return DraftRace(self, target_ids)


class DraftRace:
    """A draft's view of a :class:`CoupledNoise`: its "draft" draws run the target's race at a position."""

    def __init__(self, noise: CoupledNoise, target_ids: torch.Tensor) -> None:
        self._noise = noise
        self._target_ids = target_ids.cpu()
        self._all_mapped = bool((self._target_ids >= 0).all())
        self._size = max(int(self._target_ids.max()), 0) + 1

    def categorical(self, weights: torch.Tensor, stream: Stream, position: int, attempt: int = 0) -> int:
        if stream != "draft":
            return self._noise.categorical(weights, stream, position, attempt)
        size = len(weights)
        arrivals = self._noise.arrivals(position, self._size)[self._target_ids[:size].clamp(min=0)]
        if not self._all_mapped:
            own = self._noise.own_arrivals(position, size)
            arrivals = torch.where(self._target_ids[:size] >= 0, arrivals, own)
        return _winner(weights, arrivals)

    def bernoulli(self, probability: float, stream: Stream, position: int, attempt: int = 0) -> bool:
        return self._noise.bernoulli(probability, stream, position, attempt)


def _winner(weights: torch.Tensor, arrivals: torch.Tensor) -> int:
    """The index of the smallest arrival / weight; never one of weight 0, as arrivals are positive."""
    return int((weights / arrivals.to(weights.device)).argmax())
