"""Forward passes in C over a cache of slots: the interface of :class:`~anydraft.models.runner.ModelRunner`.

Bits of a token's logits do not depend on the block or the batch that it runs in, so that verifying drafts
gives exactly the text of decoding token by token, in bf16 as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from anydraft.errors import ModelError
from anydraft.kernels.decoder import Decoder
from anydraft.kernels.linear import WeightFormat
from anydraft.models.growth import Allocation
from anydraft.models.runner import at_fed_rows

PREFILL_CHUNK = 256


class NativeCache:
    """Keys and values, bf16 [rows, kv_heads, slots, head_dim] for each layer; see
    :class:`~anydraft.models.growth.Allocation` for how it grows."""

    def __init__(self, decoder: Decoder, max_slots: int) -> None:
        self._decoder = decoder
        element = torch.bfloat16.itemsize
        slot_bytes = 2 * element * decoder.num_layers * decoder.kv_heads * decoder.head_dim
        self.allocation = Allocation(max_slots, slot_bytes)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._reallocate()

    def fit(self, rows: int, slots: int) -> None:
        """Have at least so many rows and slots."""
        if self.allocation.grow(rows, slots):
            self._reallocate()

    def make_room(self, rows: int, slots: int) -> None:
        """See :meth:`Allocation.make_room`; rows beyond are lost, and slots beyond of every row."""
        if self.allocation.make_room(rows, slots):
            self._reallocate()

    def _reallocate(self) -> None:
        self.keys = self._resized(self.keys)
        self.values = self._resized(self.values)
        self._decoder.bind_cache(self.keys, self.values)

    def _resized(self, old: list[torch.Tensor]) -> list[torch.Tensor]:
        decoder = self._decoder
        rows, slots = self.allocation.rows, self.allocation.slots
        resized = []
        for i in range(decoder.num_layers):
            new = torch.zeros(rows, decoder.kv_heads, slots, decoder.head_dim, dtype=torch.bfloat16)
            if old:
                kept = old[i][:rows, :, :slots]
                new[: kept.shape[0], :, : kept.shape[2]] = kept
                old[i] = torch.empty(0)  # one layer at a time is held twice, not all
            resized.append(new)
        return resized

    def move_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` slots of one row over another's."""
        for tensor in (*self.keys, *self.values):
            tensor[destination, :, :length] = tensor[source, :, :length]

    @property
    def num_bytes(self) -> int:
        """Bytes allocated now."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


class NativeRunner:
    """One causal language model on the C forward pass; rows are addressed by index."""

    on_kernels = True

    def __init__(self, model: Any, max_context: int, weight: WeightFormat = "bf16") -> None:
        self.model = model
        self.max_context = max_context
        self.device = torch.device("cpu")
        self.dtype = torch.bfloat16
        self._use(Decoder(model))
        self.vocab_size = self.decoder.vocab_size
        self._check()
        if weight != "bf16":
            self._use(Decoder(model, weight))

    def _use(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.cache = NativeCache(decoder, self.max_context + 64)

    def prefill(self, row: int, ids: Sequence[int], start: int) -> None:
        """Write ``ids`` at positions ``start``.. of ``row``; no logits."""
        for at in range(0, len(ids), PREFILL_CHUNK):
            self._run(row, [ids[at : at + PREFILL_CHUNK]], [start + at], wanted=[])

    def forward(
        self,
        first_row: int,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        *,
        last_only: bool = False,
        only: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Feed ``ids[b]`` to row ``first_row + b`` from position ``starts[b]`` on; an empty row is left as it is.

        Args:
            only: int64 [A], the vocabulary ids to compute, one tensor object for the same ids (the head is pruned
                to them once); None: all.

        Returns:
            Logits float32 [B, W, V or A], W the longest row (with ``last_only`` [B, 1, ..]: after each row's
            last token); entries beyond a row's own tokens mean nothing.
        """
        lengths = [len(row) for row in ids]
        ends = torch.tensor(lengths).cumsum(0).tolist()
        if last_only:
            last = [end - 1 for end, length in zip(ends, lengths, strict=True) if length]
            return at_fed_rows(self._run(first_row, ids, starts, last, only), ids)
        logits = self._run(first_row, ids, starts, list(range(ends[-1])), only)
        if len(set(lengths)) == 1:
            return logits.view(len(ids), lengths[0], -1)
        padded = logits.new_empty(len(ids), max(lengths), logits.shape[-1])
        for b, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            padded[b, :length] = logits[end - length : end]
        return padded

    def forward_tree(
        self,
        row: int,
        ids: Sequence[int],
        depths: Sequence[int],
        parents: Sequence[int],
        start: int,
        first_new: int,
    ) -> torch.Tensor:
        """See :meth:`~anydraft.models.runner.ModelRunner.forward_tree`."""
        n = len(ids)
        branches: list[list[int]] = []
        for i, parent in enumerate(parents):
            branches.append([*(branches[parent] if parent >= 0 else []), start + i])
        new = range(first_new, n)
        width = max(depths) + 1
        self.cache.fit(row + 1, start + n)
        return self.decoder.forward(
            torch.tensor(ids[first_new:]),
            torch.full((len(new),), row),
            torch.tensor([start + depths[i] for i in new]),
            torch.tensor([start + i for i in new]),
            torch.full((len(new),), start),
            torch.arange(len(new)),
            torch.tensor([branches[i] + [0] * (width - len(branches[i])) for i in new], dtype=torch.int32),
            torch.tensor([len(branches[i]) for i in new], dtype=torch.int32),
        )

    def _run(
        self,
        first_row: int,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        wanted: Sequence[int],
        only: torch.Tensor | None = None,
    ) -> torch.Tensor:
        flat = [token for row in ids for token in row]
        at = [start + i for start, row in zip(starts, ids, strict=True) for i in range(len(row))]
        rows = [first_row + b for b, row in enumerate(ids) for _ in row]
        self.cache.fit(first_row + len(ids), max(at) + 1)
        positions = torch.tensor(at)
        return self.decoder.forward(
            torch.tensor(flat),
            torch.tensor(rows),
            positions,
            positions,
            positions + 1,
            torch.tensor(wanted, dtype=torch.int64),
            only=only,
        )

    @torch.inference_mode()
    def _check(self) -> None:
        """Refuse to run what does not give the model's own logits (a variant that the C code does not know).

        Done with the model's own weights: quantized ones may be anywhere on a text that makes no sense."""
        ids = [1 + (7 * i) % min(self.vocab_size - 1, 97) for i in range(8)]
        plain = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        self.forward(0, [ids[:3] + ids[:2]], [0])
        ours = self.forward(0, [ids[3:]], [3])[0, -1]
        scale = float(plain.abs().max())
        error = float((plain - ours).abs().max())
        if not error <= 0.1 * scale:
            raise ModelError(
                f"the C forward pass of {type(self.model).__name__} is off by {error:.3g} of {scale:.3g}; set "
                "ANYDRAFT_KERNELS=0 to run it in torch"
            )
