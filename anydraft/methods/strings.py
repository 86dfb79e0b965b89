"""Which target token a draft's text begins with: the map under the proposal tree of SLRS."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import torch

from anydraft.vocab.bridge import Bridge

_CACHED_IDS = 2_000_000  # draft ids in cached maps, 16 bytes each


@dataclass(frozen=True, eq=False)
class LeafMap:
    """Where one more draft token leads to after a text u.

    Attributes:
        draft_ids, target_ids: int64 [M] each: u + bytes(draft id) begins with that target token.
        default: what every other draft id leads to: the longest target token that u itself begins with;
            -1 if there is none.
    """

    draft_ids: torch.Tensor
    target_ids: torch.Tensor
    default: int


class StringMap:
    """Texts against the target's vocabulary, by bytes.

    Args:
        bridge: of the pair of vocabularies.
        target_vocab_size: V_target, the width of the target's rows; ids beyond it are never proposed.
    """

    def __init__(self, bridge: Bridge, target_vocab_size: int) -> None:
        self.bridge = bridge
        target, fallback = bridge.target, bridge.target.byte_fallback
        by_bytes: dict[bytes, int] = {}
        for i, data in target.text_items():
            known = by_bytes.get(data)
            if i < target_vocab_size and (known is None or (known in fallback and i not in fallback)):
                by_bytes[data] = i
        self._ids = by_bytes
        self._sorted = sorted(by_bytes)
        self._longest = max(map(len, by_bytes), default=0)
        drafts = sorted((data, i) for i, data in bridge.draft.text_items())
        self._drafts = [data for data, _ in drafts]
        self._draft_ids = np.array([i for _, i in drafts], dtype=np.int64)
        controls = [i for i in bridge.draft.controls if 0 <= bridge.draft_to_target[i] < target_vocab_size]
        self._controls = np.array(controls, dtype=np.int64)
        self._size = target_vocab_size
        self._inner: dict[bytes, torch.Tensor] = {}
        self._cache: dict[bytes, LeafMap] = {}
        self._cached = 0

    def extends(self, text: bytes) -> bool:
        """Whether some target token is longer than ``text`` and begins with it."""
        at = bisect_right(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)

    def longest(self, text: bytes) -> int:
        """The longest target token that ``text`` begins with; -1 if there is none."""
        for size in range(min(self._longest, len(text)), 0, -1):
            found = self._ids.get(text[:size])
            if found is not None:
                return found
        return -1

    def leaves(self, text: bytes) -> LeafMap:
        """Where one more draft token leads to after ``text``; the least recently used maps are forgotten."""
        found = self._cache.pop(text, None)
        if found is None:
            found = self._build(text)
            self._cached += len(found.draft_ids)
        self._cache[text] = found
        while self._cached > _CACHED_IDS and len(self._cache) > 1:
            oldest = self._cache.pop(next(iter(self._cache)))
            self._cached -= len(oldest.draft_ids)
        return found

    def after(self, text: bytes, draft_id: int) -> int:
        """The target id that ``text`` and one more draft token lead to; -1: none."""
        data = self.bridge.draft.tokens[draft_id]
        if data:
            return self.longest(text + data)
        mapped = -1 if text else int(self.bridge.draft_to_target[draft_id])
        return mapped if 0 <= mapped < self._size else self.longest(text)

    def inner(self, text: bytes) -> torch.Tensor:
        """int64: the draft ids after which ``text`` is still a proper prefix of a target token."""
        found = self._inner.get(text)
        if found is None:
            first, last = _span(self._sorted, text)
            rests = {
                token[len(text) : n]
                for token in self._sorted[first:last]
                for n in range(len(text) + 1, len(token))
            }
            spans = [_equal(self._drafts, rest) for rest in rests]
            ids = [self._draft_ids[a:b] for a, b in spans if a < b]
            merged = np.sort(np.concatenate(ids)) if ids else np.empty(0, dtype=np.int64)
            found = self._inner[text] = torch.from_numpy(merged)
        return found

    def _build(self, text: bytes) -> LeafMap:
        """The target tokens that begin with ``text``, in order: each claims the draft tokens that begin
        with the rest of it, and a longer one comes after those that it begins with."""
        claimed = np.full(len(self._drafts), -1, dtype=np.int64)
        first, last = _span(self._sorted, text)
        for token in self._sorted[first:last]:
            if rest := token[len(text) :]:
                start, end = _span(self._drafts, rest)
                if start < end:
                    claimed[start:end] = self._ids[token]
        found = np.flatnonzero(claimed >= 0)
        draft_ids, target_ids = self._draft_ids[found], claimed[found]
        if not text:
            draft_ids = np.concatenate([draft_ids, self._controls])
            target_ids = np.concatenate([target_ids, self.bridge.draft_to_target[self._controls]])
        return LeafMap(torch.from_numpy(draft_ids), torch.from_numpy(target_ids), self.longest(text))


def _span(ordered: list[bytes], prefix: bytes) -> tuple[int, int]:
    """The range of ``ordered`` that begins with ``prefix``."""
    head = prefix.rstrip(b"\xff")
    start = bisect_left(ordered, prefix)
    if not head:
        return start, len(ordered)
    return start, bisect_left(ordered, head[:-1] + bytes([head[-1] + 1]), start)


def _equal(ordered: list[bytes], value: bytes) -> tuple[int, int]:
    """The range of ``ordered`` that equals ``value``."""
    return bisect_left(ordered, value), bisect_right(ordered, value)
