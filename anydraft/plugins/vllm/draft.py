"""Loads the draft: a model of vLLM's own with private keys and values, or AnyDraft's runtime on a CPU."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from anydraft.errors import ModelError
from anydraft.models.describe import ModelInfo
from anydraft.models.draft import ModelDraft
from anydraft.models.locate import locate
from anydraft.plugins.capacity import GIB, BoundedDraft, require_room
from anydraft.plugins.hooks import HostError
from anydraft.plugins.options import Options
from anydraft.plugins.own import load_own
from anydraft.plugins.vllm.runner import PagedRunner, attention_layers, kv_spec
from anydraft.vocab.tokenizer import Tokenizer


@dataclass(frozen=True)
class DraftPlan:
    """What is known of the draft before any weights are loaded.

    Attributes:
        info: its config and tokenizer.
        tokenizer: its bytes.
        max_context: tokens of context that it may see.
        max_rows: requests that run at once.
    """

    info: ModelInfo
    tokenizer: Tokenizer
    max_context: int
    max_rows: int


def draft_model_config(options: Options, plan: DraftPlan, host: Any) -> Any:
    """vLLM's ``ModelConfig`` of the draft.

    Raises:
        ModelError: vLLM refuses it, or it is multimodal.
    """
    from vllm.config import ModelConfig

    target = host.model_config
    folder = str(locate(plan.info.name))
    try:
        config = ModelConfig(
            model=folder,
            tokenizer=folder,
            runner="draft",
            dtype=target.dtype if options.dtype == "auto" else options.dtype,
            quantization=options.quantization,
            max_model_len=plan.max_context,
            trust_remote_code=target.trust_remote_code,
            enforce_eager=True,
        )
    except (ValueError, OSError) as error:
        raise _refused(plan, error) from error
    if config.is_multimodal_model:
        raise ModelError(f"the draft {plan.info.name} is multimodal; give a text-only model")
    return config


def load_paged(options: Options, plan: DraftPlan, host: Any, model_config: Any) -> BoundedDraft:
    """Load the draft as a model of vLLM's with keys and values of its own.

    Raises:
        ModelError: vLLM cannot read its weights, or not with this dtype and quantization.
        HostError: its layers keep other state than keys and values.
        UsageError: ``kv_cache_gib`` does not hold one request.
    """
    from vllm.config import CompilationConfig
    from vllm.config.utils import replace
    from vllm.model_executor.model_loader import get_model

    cache_config = copy.copy(host.cache_config)  # its layout is the target's
    cache_config.kv_cache_layout = None
    # A compilation config of its own: the layers of the draft register there and stay out of the target's.
    try:
        config = replace(
            host,
            model_config=model_config,
            cache_config=cache_config,
            speculative_config=None,
            quant_config=None,
            lora_config=None,
            compilation_config=CompilationConfig(mode=0),
        )
        model = get_model(vllm_config=config)
    except Exception as error:  # configs are validated, and readers of weights raise classes of their own
        raise _refused(plan, error) from error
    block_size = int(config.cache_config.block_size)
    block_bytes = 0
    for name, layer in attention_layers(config).items():
        spec = layer.get_kv_cache_spec(config)
        if spec is None or not hasattr(spec, "num_kv_heads"):
            raise HostError(
                f"the draft {plan.info.name} keeps state that cannot be rolled back ({name}); choose a draft "
                "whose layers are all ordinary attention"
            )
        block_bytes += kv_spec(layer, config, block_size).page_size_bytes
    blocks_of_one = -(-plan.max_context // block_size)
    num_blocks = min(plan.max_rows * blocks_of_one, int(options.kv_cache_gib * GIB) // block_bytes)
    num_tokens, most = num_blocks * block_size, blocks_of_one * block_size
    require_room(plan.info.name, options.kv_cache_gib, num_tokens, most, block_bytes / block_size)
    max_context = min(plan.max_context, num_tokens)
    runner = PagedRunner(model, config, max_context, num_blocks, block_size)
    return BoundedDraft(ModelDraft(runner, plan.tokenizer), runner.cache, max_context)


def load_on_cpu(options: Options, plan: DraftPlan, host: Any) -> BoundedDraft:
    """Load the draft into AnyDraft's own forward pass, with int8 or int4 weights.

    Raises:
        HostError: the host does not run on a CPU.
        UsageError, ModelError: the forward pass does not know this model.
    """
    if torch.device(host.device_config.device).type != "cpu":
        raise HostError(f"quantization={options.quantization!r} is AnyDraft's own and runs on CPUs only")
    return load_own(
        plan.info.name,
        plan.tokenizer,
        dtype="bfloat16",
        device="cpu",
        quantization=options.quantization,
        max_context=plan.max_context,
        kv_cache_gib=options.kv_cache_gib,
    )


def _refused(plan: DraftPlan, error: Any) -> ModelError:
    """In one line: vLLM's own reason. Its configs are pydantic's, whose errors begin with their number."""
    found = [str(e["msg"]) for e in error.errors()] if hasattr(error, "errors") else [str(error)]
    lines = [line.strip() for text in found for line in text.splitlines() if line.strip()]
    return ModelError(f"vLLM cannot load the draft {plan.info.name}: {[*lines, type(error).__name__][0]}")
