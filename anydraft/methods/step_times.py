"""How long forwards take, by their size, on a machine that is now faster and now slower."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

_SPEED_MEMORY = 0.2
"""Weight of the newest measurement in the machine's present speed."""
_LEAST_MEMORY = 0.02
"""Weight of the newest measurement in a size's own time, once there are many: sizes compare as they always did."""
_OUTLIER = 2.0
"""A measurement above so many times the expected counts as that much: a moment in which something else ran."""
_MANY = 5
"""So many measurements of one size weigh as much as more."""


@dataclass
class Speed:
    """The machine's present speed: seconds of now for one of the common time."""

    value: float = 1.0


class StepTimes(Mapping[int, float]):
    """Seconds of a forward by its number of tokens (or rows).

    Each size has its own time at a common speed, and each measurement moves both: mostly the speed, so that a
    machine that slows down between a forward of one size and one of another does not pass for a difference of
    the sizes. A larger forward is never taken for cheaper (isotonic regression over what was measured).

    As a mapping: the sizes measured, with their times at the present speed.

    Args:
        speed: shared by times that speed up and slow down together; None: of its own.
    """

    def __init__(self, speed: Speed | None = None) -> None:
        self._speed = speed or Speed()
        self._times: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._curve: list[tuple[int, float]] = []
        """The times at the common speed that never fall; fitted anew after a measurement, not for each of many rows."""

    def observe(self, size: int, seconds: float) -> None:
        """A forward over ``size`` tokens took so long."""
        count = self._counts[size] = self._counts.get(size, 0) + 1
        seconds = max(seconds, 1e-9)
        if count == 1:
            within = bool(self._times) and min(self._times) < size < max(self._times)
            # Between two known sizes the first measurement is one opinion and theirs another.
            time = math.sqrt(seconds * self.at(size)) if within else seconds
            self._times[size] = time / self._speed.value
        else:
            surprise = min(seconds / self[size], _OUTLIER)
            self._speed.value *= surprise ** (_SPEED_MEMORY * (1.0 - 1.0 / count))
            self._times[size] *= surprise ** max((1.0 - _SPEED_MEMORY) / count, _LEAST_MEMORY)
        self._curve = []

    def count(self, size: int) -> int:
        """How often this size was measured."""
        return self._counts.get(size, 0)

    def __getitem__(self, size: int) -> float:
        return self._times[size] * self._speed.value

    def __iter__(self) -> Iterator[int]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)

    def at(self, size: int) -> float:
        """Seconds of a forward of any size: between measured sizes on a straight line, below the smallest as the
        smallest, beyond the largest on the line through both. 0.0 before the first measurement."""
        if not self._curve:
            self._curve = list(self._fitted())
        return self._speed.value * _along(self._curve, size)

    def _fitted(self) -> Iterator[tuple[int, float]]:
        """(size, time), both ascending: neighbours out of order share their weighted mean."""
        blocks: list[tuple[float, float, list[int]]] = []
        for size in sorted(self._times):
            time, weight, sizes = self._times[size], float(min(self._counts[size], _MANY)), [size]
            while blocks and blocks[-1][0] > time:
                before, its_weight, its_sizes = blocks.pop()
                time = (time * weight + before * its_weight) / (weight + its_weight)
                weight, sizes = weight + its_weight, its_sizes + sizes
            blocks.append((time, weight, sizes))
        return ((size, time) for time, _, sizes in blocks for size in sizes)


def _along(curve: list[tuple[int, float]], size: int) -> float:
    if not curve:
        return 0.0
    (first, least), (last, most) = curve[0], curve[-1]
    if size <= first:
        return least
    if size >= last:
        return most + (size - last) * (most - least) / max(last - first, 1)
    for (below, lower), (above, upper) in pairwise(curve):
        if size <= above:
            return lower + (size - below) * (upper - lower) / (above - below)
    raise AssertionError("unreachable: the size lies within the curve")
