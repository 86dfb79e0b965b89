"""KV caches in slots: every row writes at its own positions, and rolling back is a smaller length.

A :class:`SlotCache` is a Transformers cache whose layers are plain tensors [rows, heads, slots, dim].
Nothing is ever removed from them: what a row may see is decided by the mask of the forward that reads
it, so slots past a row's length may hold anything and ragged acceptance costs nothing. Sliding-window
layers keep every slot and are windowed by the mask as well.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from anydraft.models.growth import Allocation


class _SlotLayer(CacheLayerMixin):
    """One layer's keys and values. ``plan`` is shared by all layers of a cache."""

    is_sliding = False

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._empty(key_states)
        self.values = self._empty(value_states)
        self.is_initialized = True

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not garbage: a masked slot has weight 0, and 0 * NaN would still be NaN.
        plan = self.plan
        plan.generation += 1
        shape = (plan.allocation.rows, like.shape[1], plan.allocation.slots + plan.spare, like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def resize(self) -> None:
        """Have what the plan's allocation says; what lies beyond it is lost."""
        rows, slots, spare = self.plan.allocation.rows, self.plan.allocation.slots, self.plan.spare
        if not self.is_initialized or (self.keys.shape[0], self.keys.shape[2]) == (rows, slots + spare):
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            kept = old[:rows, :, : min(slots, old.shape[2] - spare)]
            new = self._empty(kept)
            new[: kept.shape[0], :, : kept.shape[2]] = kept
            setattr(self, name, new)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.resize()
        assert self.keys is not None and self.values is not None
        plan = self.plan
        first, last = plan.first_row, plan.first_row + key_states.shape[0]
        if plan.contiguous_start is not None:
            at = slice(plan.contiguous_start, plan.contiguous_start + key_states.shape[2])
            self.keys[first:last, :, at] = key_states
            self.values[first:last, :, at] = value_states
        else:
            # Advanced indices around a slice: the indexed axes come first, [rows, width, heads, dim].
            self.keys[plan.rows, :, plan.write_at] = key_states.transpose(1, 2)
            self.values[plan.rows, :, plan.write_at] = value_states.transpose(1, 2)
        return self.keys[first:last, :, : plan.read_to], self.values[first:last, :, : plan.read_to]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.plan.read_to, 0

    def get_seq_length(self) -> int:
        return max(self.plan.read_to - self.plan.width, 0)

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class _Plan:
    """Where the current forward writes and how far it reads; set by :meth:`SlotCache.plan_forward`."""

    def __init__(self, allocation: Allocation, spare: int) -> None:
        self.allocation = allocation
        self.spare = spare
        self.generation = 0
        self.first_row = 0
        self.width = 0
        self.read_to = 0
        self.contiguous_start: int | None = 0
        self.write_at = torch.zeros(1, 1, dtype=torch.long)
        self.rows = self.write_at


class SlotCache(Cache):
    """The KV cache of one model for many rows.

    Args:
        num_layers: attention layers of the model.
        max_slots, slot_bytes: see :class:`~anydraft.models.growth.Allocation`.
        spare_slot: give every row one slot more, which no forward reads, for :meth:`plan_step`.
    """

    def __init__(
        self, num_layers: int, max_slots: int, slot_bytes: int = 0, *, spare_slot: bool = False
    ) -> None:
        self.allocation = Allocation(max_slots, slot_bytes)
        self._plan = _Plan(self.allocation, int(spare_slot))
        super().__init__(layers=[_SlotLayer(self._plan) for _ in range(num_layers)])

    def plan_forward(self, first_row: int, write_at: torch.Tensor, read_to: int) -> None:
        """The next forward feeds rows ``first_row`` .. and writes token j of row b at slot ``write_at[b, j]``.

        Args:
            write_at: int64 [B, W].
            read_to: how many slots the forward reads; masks are [B, 1, W, read_to].
        """
        plan = self._plan
        rows, plan.width = write_at.shape
        self.allocation.grow(first_row + rows, read_to)
        plan.first_row, plan.read_to, plan.write_at = first_row, read_to, write_at
        start = int(write_at[0, 0])
        in_order = torch.arange(start, start + plan.width, device=write_at.device)
        plan.contiguous_start = start if bool((write_at == in_order).all()) else None
        if plan.contiguous_start is None:
            plan.rows = torch.arange(first_row, first_row + rows, device=write_at.device)[:, None]

    def plan_step(self, write_at: torch.Tensor, read_to: int) -> None:
        """The next forward feeds one token to each of the rows 0.., from tensors alone: nothing is read on the host,
        and nothing grows (see :meth:`fit`).

        Args:
            write_at: int64 [B, 1]; :attr:`spare_slot` for a row that is to stay as it is.
            read_to: as for :meth:`plan_forward`.
        """
        plan = self._plan
        rows, plan.width = write_at.shape
        plan.first_row, plan.read_to, plan.write_at = 0, read_to, write_at
        plan.contiguous_start = None
        plan.rows = torch.arange(rows, device=write_at.device)[:, None]

    @property
    def spare_slot(self) -> int:
        """The slot that every row has beyond those that are read."""
        assert self._plan.spare, "made without a spare slot"
        return self.allocation.slots

    @property
    def generation(self) -> int:
        """Another number whenever keys and values are at other addresses; 0 while there are none."""
        return self._plan.generation

    @torch.inference_mode()
    def fit(self, rows: int, slots: int) -> None:
        """Have at least so many rows and slots, also before the forward that needs them."""
        self.allocation.grow(rows, slots)
        for layer in self.layers:
            layer.resize()

    @torch.inference_mode()
    def make_room(self, rows: int, slots: int) -> None:
        """See :meth:`Allocation.make_room`; rows beyond are lost, and slots beyond of every row."""
        if self.allocation.make_room(rows, slots):
            for layer in self.layers:
                layer.resize()

    @torch.inference_mode()
    def move_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` slots of one row over another's."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys[destination, :, :length] = layer.keys[source, :, :length]
                layer.values[destination, :, :length] = layer.values[source, :, :length]

    @property
    def num_bytes(self) -> int:
        """Bytes allocated now."""
        return sum(
            t.numel() * t.element_size()
            for layer in self.layers
            if layer.is_initialized
            for t in (layer.keys, layer.values)
        )
