"""As much of vLLM as the plugin touches, in modules of the same names, for tests without vLLM."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

BLOCK = 4


@dataclass(frozen=True)
class Spec:
    block_size: int = BLOCK
    num_kv_heads: int = 1
    page_size_bytes: int = BLOCK * 8

    def copy_with_new_block_size(self, block_size: int) -> Spec:
        return Spec(block_size, self.num_kv_heads, block_size * 8)


class Builder:
    def __init__(self, spec: Spec, names: list[str], config: Any, device: torch.device) -> None:
        self.spec, self.names = spec, names

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return common_attn_metadata


class Backend:
    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder


class AttentionLayerBase:
    """Its cache holds the ids that were written to each slot."""

    def get_attn_backend(self) -> type[Backend]:
        return Backend

    def get_kv_cache_spec(self, vllm_config: Any) -> Spec:
        return Spec()

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        self.kv_cache = kv_cache


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    seq_lens_cpu_upper_bound: torch.Tensor | None = None


@dataclass
class KVCacheTensor:
    size: int
    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int = 0


def create_kv_cache_views(raw: Any, spec: Any, num_blocks: int, layout: Any, kv_cache_tensor: Any) -> Any:
    return [raw.view(torch.int64).view(num_blocks, spec.block_size)]


class PagedTable:
    """A model that reads each row's history back from the blocks of every layer; logits from a table."""

    def __init__(self, table: Any, layers: dict[str, AttentionLayerBase]) -> None:
        self.table, self.layers = table, layers
        self.batches: list[int] = []
        self.context: Any = None

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        given = self.context
        common = next(iter(given.attn_metadata.values()))
        assert given.attn_metadata.keys() == given.slot_mapping.keys() == self.layers.keys()
        assert given.num_tokens == common.num_actual_tokens == len(input_ids)
        self.batches.append(common.num_reqs)
        hidden = torch.zeros(len(input_ids), self.table.vocab_size)
        for name, layer in self.layers.items():
            layer.kv_cache.view(-1)[given.slot_mapping[name]] = input_ids
        starts = common.query_start_loc.tolist()
        for i in range(common.num_reqs):
            length = int(common.seq_lens[i])
            blocks = common.block_table_tensor[i, : -(-length // BLOCK)].long()
            histories = {
                tuple(layer.kv_cache[blocks].flatten()[:length].tolist()) for layer in self.layers.values()
            }
            (history,) = histories
            for j in range(starts[i], starts[i + 1]):
                at = length - (starts[i + 1] - j)
                assert int(positions[j]) == at
                hidden[j] = self.table.logits(history[: at + 1])
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


@dataclass
class FakeConfig:
    """A ``VllmConfig``: whatever attributes a test needs."""

    model_config: Any = None
    cache_config: Any = field(
        default_factory=lambda: SimpleNamespace(block_size=BLOCK, kv_cache_layout="other")
    )
    speculative_config: Any = None
    quant_config: Any = None
    lora_config: Any = None
    compilation_config: Any = None
    device_config: Any = field(default_factory=lambda: SimpleNamespace(device="cpu"))
    scheduler_config: Any = field(default_factory=lambda: SimpleNamespace(max_num_seqs=4))
    parallel_config: Any = field(
        default_factory=lambda: SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1)
    )
    additional_config: Any = field(default_factory=dict)


class ModelConfig:
    is_multimodal_model = False

    def __init__(
        self,
        model: str,
        tokenizer: str,
        runner: str,
        dtype: Any,
        quantization: Any,
        max_model_len: int,
        **rest: Any,
    ) -> None:
        if quantization == "unheard-of":
            raise ValueError("Unknown quantization method: unheard-of.\nMore lines.")
        self.model, self.dtype, self.max_model_len = model, dtype, max_model_len


def install(monkeypatch: pytest.MonkeyPatch, model: PagedTable | None = None) -> dict[str, ModuleType]:
    """Put the fake modules in place; ``model`` is what ``get_model`` loads."""

    @contextlib.contextmanager
    def set_forward_context(
        attn_metadata: Any, vllm_config: Any, num_tokens: int, slot_mapping: Any
    ) -> Iterator[None]:
        assert model is not None
        model.context = SimpleNamespace(
            attn_metadata=attn_metadata, num_tokens=num_tokens, slot_mapping=slot_mapping
        )
        yield
        model.context = None

    def get_model(*, vllm_config: Any) -> Any:
        assert vllm_config.speculative_config is None
        assert vllm_config.compilation_config.layers == {}
        vllm_config.compilation_config.layers.update(model.layers if model else {})
        return model

    def replace(config: Any, /, **changes: Any) -> Any:
        return FakeConfig(**{**vars(config), **changes})

    class CompilationConfig:
        def __init__(self, mode: int) -> None:
            self.mode, self.layers = mode, {}

    class GPUModelRunner:
        def propose_draft_token_ids(self, scheduler_output: Any, sampled_token_ids: Any) -> None: ...

    class GroupCoordinator:
        def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
            return 0.125  # what rank 0 measured

    class AttentionMetadataBuilder:
        def build(
            self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> None: ...

    def record_kv_cache_layout(cache_config: Any, layout_name: str) -> None:
        assert cache_config.kv_cache_layout is None
        cache_config.kv_cache_layout = layout_name

    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> torch.Tensor:
        return torch.zeros(num_tokens, dtype=x.dtype)

    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.config": {
            "ModelConfig": ModelConfig,
            "CompilationConfig": CompilationConfig,
            "get_layers_from_vllm_config": lambda vllm_config, layer_type, layer_names=None: (
                vllm_config.compilation_config.layers
            ),
        },
        "vllm.config.utils": {"replace": replace},
        "vllm.distributed.parallel_state": {
            "GroupCoordinator": GroupCoordinator,
            "get_tp_group": GroupCoordinator,
        },
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
        "vllm.forward_context": {"set_forward_context": set_forward_context},
        "vllm.model_executor.model_loader": {"get_model": get_model},
        "vllm.model_executor.layers.attention_layer_base": {"AttentionLayerBase": AttentionLayerBase},
        "vllm.v1.attention.backend": {
            "CommonAttentionMetadata": CommonAttentionMetadata,
            "AttentionMetadataBuilder": AttentionMetadataBuilder,
        },
        "vllm.v1.attention.backends.utils": {
            "get_supported_kv_cache_layouts": lambda backends: [SimpleNamespace(name="LBHNC")],
            "record_kv_cache_layout": record_kv_cache_layout,
        },
        "vllm.v1.kv_cache_interface": {
            "create_kv_cache_views": create_kv_cache_views,
            "KVCacheTensor": KVCacheTensor,
        },
        "vllm.v1.sample.rejection_sampler": {
            "expand_batch_to_tokens": expand_batch_to_tokens,
            "apply_top_k_top_p": lambda logits, k, p: logits,
        },
        "vllm.v1.spec_decode.custom_class_proposer": {"create_custom_proposer": lambda vllm_config: None},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": GPUModelRunner},
    }
    modules: dict[str, ModuleType] = {}
    for name in contents:
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:i]), ModuleType(".".join(parts[:i])))
    for name, module in modules.items():
        vars(module).update(contents.get(name, {}))
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(modules[parent], own, module)
        monkeypatch.setitem(sys.modules, name, module)
    return modules
