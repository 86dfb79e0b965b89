"""Loads the draft: a model of vLLM's own with private keys and values, or AnyDraft's runtime on a CPU."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anydraft.errors import ModelError, UsageError
from anydraft.models.describe import ModelInfo
from anydraft.models.draft import ModelDraft
from anydraft.models.load import load_model
from anydraft.models.locate import locate
from anydraft.models.native import NativeRunner
from anydraft.models.select import make_runner
from anydraft.plugins.capacity import BoundedDraft
from anydraft.plugins.vllm.host import HostError
from anydraft.plugins.vllm.options import Options
from anydraft.plugins.vllm.runner import PagedRunner, attention_layers, kv_spec
from anydraft.vocab.tokenizer import Tokenizer

GIB = 1024**3


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
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"vLLM cannot load the draft {plan.info.name}: {first}") from error
    if config.is_multimodal_model:
        raise ModelError(f"the draft {plan.info.name} is multimodal; give a text-only model")
    return config


def load_paged(options: Options, plan: DraftPlan, host: Any, model_config: Any) -> BoundedDraft:
    """Load the draft as a model of vLLM's with keys and values of its own.

    Raises:
        HostError: its layers keep other state than keys and values.
        UsageError: ``kv_cache_gib`` does not hold one request.
    """
    from vllm.config import CompilationConfig
    from vllm.config.utils import replace
    from vllm.model_executor.model_loader import get_model

    cache_config = copy.copy(host.cache_config)  # its layout is the target's
    cache_config.kv_cache_layout = None
    # A compilation config of its own: the layers of the draft register there and stay out of the target's.
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
    wanted = plan.max_rows * -(-plan.max_context // block_size)
    num_blocks = min(wanted, int(options.kv_cache_gib * GIB) // block_bytes)
    if num_blocks * block_size < 256 and num_blocks < wanted:
        raise UsageError(
            f"kv_cache_gib={options.kv_cache_gib} holds {num_blocks * block_size} tokens of the draft "
            f"{plan.info.name}; give at least {256 * block_bytes / block_size / GIB:.3f}"
        )
    max_context = min(plan.max_context, num_blocks * block_size)
    runner = PagedRunner(model, config, max_context, num_blocks, block_size)
    return BoundedDraft(ModelDraft(runner, plan.tokenizer), runner.cache, max_context)


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


def load_own(options: Options, plan: DraftPlan, host: Any) -> BoundedDraft:
    """Load the draft into AnyDraft's own forward pass, with int8 or int4 weights.

    Raises:
        HostError: the host does not run on a CPU.
        UsageError, ModelError: the forward pass does not know this model.
    """
    if torch.device(host.device_config.device).type != "cpu":
        raise HostError(f"quantization={options.quantization!r} is AnyDraft's own and runs on CPUs only")
    loaded = load_model(plan.info.name, dtype="bfloat16", device="cpu")
    with all_cores():
        runner = make_runner(loaded, quantization=options.quantization)  # type: ignore[arg-type]
    assert isinstance(runner, NativeRunner), "no other has quantized weights"
    rows, _, slots, _ = runner.cache.keys[0].shape
    capacity = RectangularCapacity(int(options.kv_cache_gib * GIB) * rows * slots // runner.cache.num_bytes)
    largest = 1 << (capacity.max_tokens.bit_length() - 1)  # one row alone must fit
    runner.max_context = min(plan.max_context, runner.max_context, largest)
    return BoundedDraft(ModelDraft(runner, plan.tokenizer), capacity, runner.max_context)


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """Let threads that are started meanwhile run on any core that this process may use.

    vLLM binds each thread of its CPU workers to one core, and a thread inherits that of its parent.
    """
    before = os.sched_getaffinity(0)
    allowed = set[int]().union(*(os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")))
    os.sched_setaffinity(0, allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _power(n: int) -> int:
    """The least power of two that is not less than ``n``."""
    return 1 << max(n - 1, 0).bit_length()
