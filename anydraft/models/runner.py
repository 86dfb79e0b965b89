"""Forward passes of one Transformers model over a :class:`SlotCache`.

The only place that knows Transformers' forward arguments; both 5.16-5.19 (``past_key_values``) and
5.24 (``cache``) are served.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from anydraft.errors import ModelError
from anydraft.models.graphs import Recorder, StepGraphs
from anydraft.models.kv import SlotCache

PREFILL_CHUNK = 512
"""Tokens of one prefill forward; bounds the memory of its activations."""


class ModelRunner:
    """One causal language model, ready to run rows of tokens at their own positions.

    Rows are addressed by index. A row's contents are whatever its callers wrote: ``forward`` puts tokens
    at given positions and lets them see every earlier position of the row.

    Args:
        recorder: records forwards of one token a row and replays them (CUDA graphs); None: none is recorded.

    Raises:
        ModelError: a model whose rows cannot be rolled back.
    """

    on_kernels = False

    def __init__(self, model: Any, max_context: int, recorder: Recorder | None = None) -> None:
        self.model = model
        self.max_context = max_context
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        if "position_ids" not in parameters or "logits_to_keep" not in parameters:
            raise ModelError(
                f"{type(model).__name__} does not take position_ids and logits_to_keep, so its rows cannot be "
                "rolled back; use a decoder-only Transformers model"
            )
        config = model.config.get_text_config()
        self._layer_types: list[str] = list(
            getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        )
        window = getattr(config, "sliding_window", None)
        uses_window = getattr(config, "use_sliding_window", True) is not False
        self._window: int | None = window if window and uses_window else None
        if self._window is not None and not getattr(config, "layer_types", None):
            self._layer_types = ["sliding_attention"] * config.num_hidden_layers
        self._additive_mask = getattr(config, "_attn_implementation", "sdpa") == "eager"
        self._graphs: StepGraphs | None = None
        self.cache = SlotCache(len(self._layer_types), max_context + 64)
        self.cache = self._check(spare_slot=recorder is not None)
        if recorder is not None:
            self._graphs = StepGraphs(self._step, self.cache, recorder, self.device)

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def prefill(self, row: int, ids: Sequence[int], start: int) -> None:
        """Write ``ids`` at positions ``start``.. of ``row``; no logits."""
        for at in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[at : at + PREFILL_CHUNK]
            self.forward(row, [chunk], [start + at], last_only=True)

    @torch.inference_mode()
    def forward(
        self,
        first_row: int,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        *,
        last_only: bool = False,
        only: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Feed ``ids[b]`` to row ``first_row + b`` from position ``starts[b]`` on.

        Rows may differ in length: shorter ones are padded at their end, which writes slots past their last
        token that later forwards overwrite or mask. An empty row is left as it is.

        Args:
            only: int64 [A], the vocabulary ids that are wanted; None: all.

        Returns:
            Logits [B, W, V or A], W the longest row (with ``last_only`` and equal lengths [B, 1, ..]); entries of
            row b beyond ``len(ids[b])`` mean nothing.
        """
        width = max(len(row) for row in ids)
        if self._graphs is not None and width == 1:
            replayed = self._graphs.forward(first_row, ids, starts, only)
            if replayed is not None:
                return replayed
        padded = torch.tensor([list(row) + [0] * (width - len(row)) for row in ids], device=self.device)
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(
            width, device=self.device
        )
        read_to = int(positions.max()) + 1
        masks = self._masks(positions, torch.arange(read_to, device=self.device)[None])
        keep = 1 if last_only and all(len(row) == width for row in ids) else 0
        # Padding may run past the context; learned position tables end there.
        inside = positions.clamp(max=self.max_context - 1)
        logits = self._run(first_row, padded, inside, positions, read_to, masks, keep)
        return logits if only is None else logits[..., only.to(self.device)]

    @torch.inference_mode()
    def forward_tree(
        self,
        row: int,
        ids: Sequence[int],
        depths: Sequence[int],
        parents: Sequence[int],
        start: int,
        first_new: int,
    ) -> torch.Tensor:
        """Feed the nodes ``first_new``.. of a tree of continuations that hangs at position ``start`` of ``row``.

        Node i holds token ``ids[i]`` at depth ``depths[i]`` (0: directly after the context), its parent is
        node ``parents[i]`` (-1: the context). Nodes before ``first_new`` were fed earlier and still sit in
        their slots: node i's slot is ``start + i``, its position ``start + depths[i]``.

        Returns:
            Logits [len(ids) - first_new, V].
        """
        n = len(ids)
        sees = torch.zeros(n, n, dtype=torch.bool)
        for i, parent in enumerate(parents):
            if parent >= 0:
                sees[i] = sees[parent]
            sees[i, i] = True
        context = torch.ones(n - first_new, start, dtype=torch.bool)
        allowed = torch.cat([context, sees[first_new:]], dim=1).to(self.device)[None]
        key_positions = torch.tensor([*range(start), *(start + d for d in depths)], device=self.device)[None]
        positions = key_positions[:, start + first_new :]
        slots = torch.arange(start + first_new, start + n, device=self.device)[None]
        masks = self._masks(positions, key_positions, allowed)
        new = torch.tensor([list(ids[first_new:])], device=self.device)
        return self._run(row, new, positions, slots, start + n, masks, 0)[0]

    def _run(
        self,
        first_row: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        read_to: int,
        masks: Any,
        keep: int,
    ) -> torch.Tensor:
        self.cache.plan_forward(first_row, slots, read_to)
        return self._logits(ids, positions, masks, keep)

    def _step(
        self, ids: torch.Tensor, positions: torch.Tensor, write_at: torch.Tensor, read_to: int
    ) -> torch.Tensor:
        """One token for each of the rows 0.., [B, 1] each, of which nothing is read on the host; logits [B, 1, V]."""
        self.cache.plan_step(write_at, read_to)
        masks = self._masks(positions, torch.arange(read_to, device=self.device)[None])
        return self._logits(ids, positions, masks, 0)

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, masks: Any, keep: int) -> torch.Tensor:
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: self.cache},
        )
        logits: torch.Tensor = output.logits
        return logits

    def _masks(
        self,
        positions: torch.Tensor,
        key_positions: torch.Tensor,
        allowed: torch.Tensor | None = None,
    ) -> Any:
        """What each query may see: 4-D, or one a layer type where full and sliding layers differ.

        Args:
            positions: [B, W] of the queries. key_positions: [1, S] of the slots. allowed: [B, W, S], or None:
                every slot at an earlier or equal position.
        """
        if allowed is None:
            allowed = key_positions[:, None, :] <= positions[:, :, None]
        kinds = set(self._layer_types)
        full = self._as_mask(allowed)
        if "sliding_attention" not in kinds or self._window is None or key_positions.shape[1] <= self._window:
            return full
        near = positions[:, :, None] - key_positions[:, None, :] < self._window
        sliding = self._as_mask(allowed & near)
        return (
            sliding
            if kinds == {"sliding_attention"}
            else {"full_attention": full, "sliding_attention": sliding}
        )

    def _as_mask(self, allowed: torch.Tensor) -> torch.Tensor:
        mask = allowed[:, None]
        if not self._additive_mask:
            return mask
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(mask, dtype=self.dtype).masked_fill(~mask, lowest)

    @torch.inference_mode()
    def _check(self, *, spare_slot: bool) -> SlotCache:
        """Refuse a model whose rows cannot be rolled back: feed, roll back, feed on, compare with a plain pass.

        Returns:
            A fresh cache that knows the size of a slot.
        """
        ids = [1 + (7 * i) % min(self.vocab_size - 1, 97) for i in range(8)]
        plain = (
            self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False)
            .logits[0, -1]
            .float()
        )
        self.forward(0, [ids[:3] + ids[:2]], [0])
        rolled = self.forward(0, [ids[3:]], [3])[0, -1].float()
        scale = float(plain.abs().max())
        tolerance = 1e-3 if self.dtype == torch.float32 else 0.1
        error = float((plain - rolled).abs().max())
        used = self.cache.allocation
        slot_bytes = self.cache.num_bytes // (used.rows * used.slots)
        if not error <= tolerance * scale:
            raise ModelError(
                f"{type(self.model).__name__} gives other logits after a roll-back of its cache (off by {error:.3g} of "
                f"{scale:.3g}); its state cannot be rolled back, so it cannot be used losslessly"
            )
        return SlotCache(len(self._layer_types), used.max_slots, slot_bytes, spare_slot=spare_slot)


def at_fed_rows(logits: torch.Tensor, ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits [rows that were fed, V] as [B, 1, V]; entries of the rows of ``ids`` that are empty mean nothing."""
    if len(logits) == len(ids):
        return logits[:, None]
    spread = logits.new_empty(len(ids), 1, logits.shape[-1])
    spread[[b for b, row in enumerate(ids) if len(row)], 0] = logits
    return spread
