"""Which waiting request may run, by the memory that its keys and values may come to take; and how it gets them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from anydraft.engine.request import Request
from anydraft.errors import UsageError
from anydraft.models.select import SlotRunner

BLOCK = 64
"""Slots beyond a request's last token: a forward over ragged proposals pads the shorter ones."""

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**n for n, prefix in enumerate("KMGT", start=1)}
_UNITS |= {f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGT", start=1)}


def parse_memory(value: int | str | None) -> int | None:
    """Bytes of ``value``: a number, or text such as "4GiB" or "500 MB"; None stays None.

    Raises:
        UsageError: neither, or not above 0.
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    unit = _UNITS.get(found[2]) if found and not isinstance(value, bool) else None
    if found is None or unit is None or (size := int(float(found[1]) * unit)) < 1:
        raise UsageError(f"kv_memory={value!r} must be bytes above 0, such as 4000000000, '4GiB' or '500MB'")
    return size


def in_words(num_bytes: int) -> str:
    """Such as "1.50 GiB" or "20 KiB"."""
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2)):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes / 1024:.0f} KiB"


class Admission:
    """Lets a request in only if it and all running ones fit until each has reached its full length.

    Args:
        target: the runner whose rows the requests own; its cache's limit is the one that holds.
    """

    def __init__(self, target: SlotRunner) -> None:
        self._target = target

    @property
    def longest_alone(self) -> int | None:
        """Tokens that one request may have in all; None: no limit."""
        allocation = self._target.cache.allocation
        if allocation.limit is None:
            return None
        return allocation.limit // allocation.bytes_for(1, 1) - BLOCK

    def refuse_unless_alone(self, num_tokens: int) -> None:
        """Raise UsageError for a request of so many tokens that would not fit even alone."""
        allocation = self._target.cache.allocation
        if not allocation.fits(1, num_tokens + BLOCK):
            needed, limit = allocation.bytes_for(1, num_tokens + BLOCK), allocation.limit or 0
            raise UsageError(
                f"{num_tokens} tokens of prompt and output need {in_words(needed)} of keys and values, but kv_memory "
                f"is {in_words(limit)}; shorten the prompt or lower max_tokens (together at most "
                f"{max(self.longest_alone or 0, 0)}), or raise kv_memory"
            )

    def fits(self, running: Sequence[Request], request: Request) -> bool:
        """Whether ``request`` may run beside ``running``."""
        return self._target.cache.allocation.fits(len(running) + 1, self._slots([*running, request]))

    def enter(self, running: Sequence[Request], request: Request) -> int:
        """Give ``request``, which fits, the row behind those of ``running``: all of its prompt but the last token.

        The keys and values of a prompt that a running request has too are copied, not computed again. Returns how
        many tokens were computed.
        """
        cache, row = self._target.cache, len(running)
        cache.make_room(row + 1, self._slots([*running, request]))
        prompt = request.prompt_ids[:-1]
        twin = next((i for i, other in enumerate(running) if other.prompt_ids == request.prompt_ids), None)
        if twin is None:
            self._target.prefill(row, prompt, 0)
            return len(prompt)
        if prompt:
            cache.fit(row + 1, len(prompt))
            cache.move_row(twin, row, len(prompt))
        return 0

    @staticmethod
    def _slots(requests: Sequence[Request]) -> int:
        """Of each row, until every request has reached its full length."""
        return max(len(r.prompt_ids) + r.max_tokens for r in requests) + BLOCK
