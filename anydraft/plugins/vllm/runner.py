"""A draft model inside vLLM, with keys and values of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from anydraft.models.runner import at_fed_rows
from anydraft.plugins.vllm.blocks import BlockTables

PREFILL_CHUNK = 512


class PagedRunner:
    """A :class:`~anydraft.models.select.Runner` over a model that vLLM has loaded.

    All rows of a forward are one ragged batch; a row's keys and values lie in blocks of a private cache that
    the target's scheduler knows nothing of.

    Args:
        model: vLLM's module.
        config: the ``VllmConfig`` it was loaded with; its ``static_forward_context`` holds this model's layers
            and no others.
        max_context: tokens that a row holds at most.
        num_blocks: of the cache.
        block_size: tokens a block.
    """

    on_kernels = False

    def __init__(self, model: Any, config: Any, max_context: int, num_blocks: int, block_size: int) -> None:
        self.model = model
        self.max_context = max_context
        self.vocab_size = int(config.model_config.get_vocab_size())
        self.device = torch.device(config.device_config.device)
        self.dtype = config.model_config.dtype
        self._config = config
        self._layers = attention_layers(config)
        specs = {name: kv_spec(layer, config, block_size) for name, layer in self._layers.items()}
        block_bytes = sum(spec.page_size_bytes for spec in specs.values())
        self.cache = BlockTables(num_blocks, block_size, block_bytes)
        self._bind(specs, num_blocks)
        self._builders = self._make_builders(specs)

    def prefill(self, row: int, ids: Sequence[int], start: int) -> None:
        """Write ``ids`` at positions ``start``.. of ``row``; no logits."""
        for at in range(0, len(ids), PREFILL_CHUNK):
            self._run([(row, ids[at : at + PREFILL_CHUNK], start + at)])

    def forward(
        self,
        first_row: int,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        *,
        last_only: bool = False,
        only: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Feed ``ids[b]`` to row ``first_row + b`` from position ``starts[b]`` on; an empty row is left alone.

        Returns:
            Logits [B, 1, V or len(only)] after each row's last token (entries of empty rows mean nothing).
        """
        assert last_only, "drafting needs the logits after each row's last token only"
        batch = [
            (first_row + b, row, start)
            for b, (row, start) in enumerate(zip(ids, starts, strict=True))
            if len(row)
        ]
        hidden = self._run(batch)
        last = torch.tensor([len(row) for _, row, _ in batch], device=self.device).cumsum(0) - 1
        logits: torch.Tensor = self.model.compute_logits(hidden[last])
        return at_fed_rows(logits if only is None else logits[:, only.to(self.device)], ids)

    def forward_tree(
        self,
        row: int,
        ids: Sequence[int],
        depths: Sequence[int],
        parents: Sequence[int],
        start: int,
        first_new: int,
    ) -> torch.Tensor:
        """Branches of one row would need an attention mask of their own, which vLLM's backends do not take."""
        raise NotImplementedError("a draft inside vLLM cannot run proposal trees")

    @torch.inference_mode()
    def _run(self, batch: Sequence[tuple[int, Sequence[int], int]]) -> torch.Tensor:
        """One forward over (row, ids, start)s; hidden states [tokens, hidden]."""
        from vllm.forward_context import set_forward_context
        from vllm.v1.attention.backend import CommonAttentionMetadata

        size = self.cache.block_size
        lengths = np.array([len(ids) for _, ids, _ in batch])
        ends = np.array([start + len(ids) for _, ids, start in batch], dtype=np.int32)
        tables = [self.cache.grow(row, int(end)) for (row, _, _), end in zip(batch, ends, strict=True)]
        positions = np.concatenate([np.arange(start, start + len(ids)) for _, ids, start in batch])
        block_table = np.zeros((len(batch), max(map(len, tables))), dtype=np.int32)
        for i, table in enumerate(tables):
            block_table[i, : len(table)] = table
        rows = np.repeat(np.arange(len(batch)), lengths)
        slots = block_table[rows, positions // size].astype(np.int64) * size + positions % size
        query_starts = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
        seq_lens = torch.from_numpy(ends)
        slot_mapping = torch.from_numpy(slots).to(self.device)
        common = CommonAttentionMetadata(
            query_start_loc=query_starts.to(self.device),
            query_start_loc_cpu=query_starts,
            seq_lens=seq_lens.to(self.device),
            seq_lens_cpu_upper_bound=seq_lens,
            num_reqs=len(batch),
            num_actual_tokens=len(positions),
            max_query_len=int(lengths.max()),
            max_seq_len=int(ends.max()),
            block_table_tensor=torch.from_numpy(block_table).to(self.device),
            slot_mapping=slot_mapping,
        )
        metadata = {}
        for names, builder in self._builders:
            built = builder.build(0, common)
            metadata.update(dict.fromkeys(names, built))
        flat = torch.tensor([token for _, ids, _ in batch for token in ids], device=self.device)
        with set_forward_context(
            metadata,
            self._config,
            num_tokens=len(positions),
            slot_mapping=dict.fromkeys(self._layers, slot_mapping),
        ):
            hidden: torch.Tensor = self.model(
                input_ids=flat, positions=torch.from_numpy(positions).to(self.device)
            )
        return hidden

    def _bind(self, specs: dict[str, Any], num_blocks: int) -> None:
        """Give every layer a cache, in the layout that its backend wants."""
        from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, record_kv_cache_layout
        from vllm.v1.kv_cache_interface import KVCacheTensor, create_kv_cache_views

        backends = {layer.get_attn_backend() for layer in self._layers.values()}
        layout = get_supported_kv_cache_layouts(backends)[0]
        record_kv_cache_layout(self._config.cache_config, layout.name)
        for name, spec in specs.items():
            page = spec.page_size_bytes
            raw = torch.zeros(num_blocks * page, dtype=torch.int8, device=self.device)
            tensor = KVCacheTensor(
                size=num_blocks * page, layers=[name], layer_stride=num_blocks * page, block_stride=page
            )
            self._layers[name].bind_kv_cache(
                create_kv_cache_views(
                    raw=raw, spec=spec, num_blocks=num_blocks, layout=layout, kv_cache_tensor=tensor
                )[0]
            )

    def _make_builders(self, specs: dict[str, Any]) -> list[tuple[list[str], Any]]:
        """One metadata builder for all layers of a kind: sliding layers apart from full ones."""
        kinds: dict[tuple[Any, Any], list[str]] = defaultdict(list)
        for name, spec in specs.items():
            kinds[self._layers[name].get_attn_backend(), spec].append(name)
        return [
            (names, backend.get_builder_cls()(spec, names, self._config, self.device))
            for (backend, spec), names in kinds.items()
        ]


def attention_layers(config: Any) -> dict[str, Any]:
    """The attention layers of a loaded model by name."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers: dict[str, Any] = get_layers_from_vllm_config(config, AttentionLayerBase)
    return layers


def kv_spec(layer: Any, config: Any, block_size: int) -> Any:
    """What a layer's cache must hold, in blocks of ``block_size`` tokens."""
    spec = layer.get_kv_cache_spec(config)
    return spec if spec.block_size == block_size else spec.copy_with_new_block_size(block_size)
