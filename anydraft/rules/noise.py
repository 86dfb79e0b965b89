"""All randomness of a request, behind one protocol.

Every draw is named by (stream, position): the same request draws the same numbers whatever batch it
runs in, and a test can replace the source by one that enumerates every outcome.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch

Stream = Literal["target", "draft", "accept", "residual"]
_STREAMS: dict[str, int] = {"target": 0, "draft": 1, "accept": 2, "residual": 3}


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

    def uniform(self, stream: Stream, position: int, attempt: int = 0) -> float:
        """A number in [0, 1), 53 random bits."""
        bits = np.random.Philox(key=self.seed % 2**64, counter=[attempt, position, _STREAMS[stream], 0])
        return float(bits.random_raw() >> 11) * 2.0**-53

    def categorical(self, weights: torch.Tensor, stream: Stream, position: int, attempt: int = 0) -> int:
        cumulative = torch.cumsum(weights.double(), dim=-1)
        u = self.uniform(stream, position, attempt) * cumulative[-1]
        index = int(torch.searchsorted(cumulative, u, right=True))
        # u < total, but rounding of the product may reach it; the last positive weight is meant then.
        return min(index, int(torch.nonzero(weights)[-1]))

    def bernoulli(self, probability: float, stream: Stream, position: int, attempt: int = 0) -> bool:
        return self.uniform(stream, position, attempt) < probability
