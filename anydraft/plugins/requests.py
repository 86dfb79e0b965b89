"""Which row of a batch is which request, when the host gives tokens and no ids.

A request's tokens only ever grow, so what was known of it is a prefix of what its row holds now. That makes
the rows' order, gaps between a request's steps (preemption) and the end of requests (nothing fits any more)
all alike to the reader. Two requests with the same tokens may be taken for one another: whatever is kept for
them is then the same too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.integer]

KEEP_STEPS = 64
"""Steps that a request may be out of the batch before it is taken for finished."""


class KnownTokens:
    """A growing copy of a request's ids, int32."""

    def __init__(self, ids: npt.ArrayLike) -> None:
        self._buffer = np.array(ids, dtype=np.int32)
        self._length = len(self._buffer)

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> TokenArray:
        """All of them, int32 [n]: a view, to be read before they grow."""
        return self._buffer[: self._length]

    def is_prefix_of(self, ids: TokenArray) -> bool:
        n = self._length
        if n > len(ids) or (n and self._buffer[n - 1] != ids[n - 1]):
            return False
        return bool(np.array_equal(self._buffer[:n], ids[:n]))

    def extend(self, ids: TokenArray) -> TokenArray:
        """Grow to ``ids``, of which this is a prefix; the new ones."""
        new = np.array(ids[self._length :], dtype=np.int32)
        self.append(new)
        return new

    def append(self, new: npt.ArrayLike) -> None:
        """Grow by ``new``."""
        added = np.asarray(new, dtype=np.int32)
        length = self._length + len(added)
        if length > len(self._buffer):
            larger = np.empty(max(length, 2 * len(self._buffer)), dtype=np.int32)
            larger[: self._length] = self.ids
            self._buffer = larger
        self._buffer[self._length : length] = added
        self._length = length


@dataclass(eq=False)
class TrackedRequest:
    """A request as recognised by its tokens.

    Attributes:
        key: names it, never used twice.
        tokens: its ids when it was seen last.
        row: where it stood then.
        idle_steps: steps since then.
    """

    key: int
    tokens: KnownTokens
    row: int
    idle_steps: int = 0


@dataclass
class RequestTracker:
    """Recognises the requests of each step among those of the steps before, one to one.

    Args:
        keep_steps: see :data:`KEEP_STEPS`.
        max_idle: requests out of the batch to remember at most; the longest gone are forgotten first.
    """

    keep_steps: int = KEEP_STEPS
    max_idle: int = 256
    _requests: dict[int, TrackedRequest] = field(default_factory=dict)
    _next_key: int = 0

    def __len__(self) -> int:
        return len(self._requests)

    def clear(self) -> None:
        """Forget all requests; their keys stay used."""
        self._requests.clear()

    def match(self, rows: Sequence[TokenArray]) -> list[TrackedRequest | None]:
        """The request of each row, None for one that was never seen.

        The longest known requests choose first, each its former row before others: of two requests of which
        one continues the other's text, each gets its own row.
        """
        found: list[TrackedRequest | None] = [None] * len(rows)
        for request in sorted(self._requests.values(), key=lambda r: -len(r.tokens)):
            request.idle_steps += 1
            for i in (request.row, *range(len(rows))):
                if i < len(rows) and found[i] is None and request.tokens.is_prefix_of(rows[i]):
                    found[i] = request
                    request.row, request.idle_steps = i, 0
                    break
        return found

    def add(self, row: int, ids: TokenArray) -> TrackedRequest:
        """A request that was never seen, in ``row``."""
        request = TrackedRequest(self._next_key, KnownTokens(ids), row)
        self._requests[request.key] = request
        self._next_key += 1
        return request

    def forget_finished(self) -> list[TrackedRequest]:
        """Forget requests that were out of the batch for too long, and return them."""
        idle = sorted((r for r in self._requests.values() if r.idle_steps), key=lambda r: -r.idle_steps)
        surplus = len(idle) - self.max_idle
        gone = [r for i, r in enumerate(idle) if r.idle_steps > self.keep_steps or i < surplus]
        for request in gone:
            del self._requests[request.key]
        return gone
