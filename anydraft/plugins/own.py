"""A draft on AnyDraft's own runtime inside a host: the C forward pass, or Transformers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from anydraft.models.draft import ModelDraft
from anydraft.models.load import load_model
from anydraft.models.select import make_runner
from anydraft.plugins.capacity import GIB, BoundedDraft, require_room
from anydraft.vocab.tokenizer import Tokenizer


class RectangularCapacity:
    """Room in a cache of equally long rows that grows by doubling, as AnyDraft's own runtime has it.

    Args:
        max_tokens: that the cache may hold, all rows together.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    def fits(self, lengths: Sequence[int]) -> bool:
        return _power(len(lengths)) * _power(max(lengths, default=0)) <= self.max_tokens

    def keep_rows(self, count: int) -> None:
        """Rows are reused as they are."""


def load_own(
    name: str,
    tokenizer: Tokenizer,
    *,
    dtype: str | torch.dtype,
    device: str | torch.device,
    quantization: str | None,
    max_context: int,
    kv_cache_gib: float,
) -> BoundedDraft:
    """Load the draft ``name`` with keys and values of its own.

    Args:
        tokenizer: the draft's.
        quantization: "int8", "int4" or None: none.
        max_context: tokens of context that it may see.
        kv_cache_gib: GiB for keys and values at most.

    Raises:
        ModelError, UsageError: it cannot be loaded, or not with this quantization, or ``kv_cache_gib`` does not hold
            one request.
    """
    loaded = load_model(name, dtype=dtype, device=device)
    chosen: Any = quantization or "none"
    with other_cores():
        runner = make_runner(loaded, quantization=chosen)
    slot_bytes = runner.cache.allocation.slot_bytes
    capacity = RectangularCapacity(int(kv_cache_gib * GIB) // slot_bytes)
    max_context = min(max_context, runner.max_context)
    require_room(name, kv_cache_gib, capacity.max_tokens, _power(max_context), slot_bytes)
    largest = 1 << (capacity.max_tokens.bit_length() - 1)  # one row alone must fit
    runner.max_context = min(max_context, largest)
    return BoundedDraft(ModelDraft(runner, tokenizer), capacity, runner.max_context)


@contextlib.contextmanager
def other_cores() -> Iterator[None]:
    """Let threads that are started meanwhile run on the other cores that this process may use.

    vLLM binds each thread of its CPU workers to one core, and a thread inherits that of its parent. One that might
    run on its parent's core as well is put there for seconds on end, as the others are still spun on by vLLM's own
    threads when a draft begins; its forwards then take 2.5 times as long.
    """
    before = os.sched_getaffinity(0)
    allowed = before.union(*(_cores_of(int(thread)) for thread in os.listdir("/proc/self/task")))
    os.sched_setaffinity(0, allowed - before if len(before) == 1 < len(allowed) else allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cores_of(thread: int) -> set[int]:
    """None of a thread that has ended since it was listed."""
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return set()


def _power(n: int) -> int:
    """The least power of two that is not less than ``n``."""
    return 1 << max(n - 1, 0).bit_length()
