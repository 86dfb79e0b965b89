"""A draft in SGLang's slots: it runs at the target's positions and speaks the target's ids at both of its ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from anydraft.errors import ModelError
from anydraft.plugins.sglang.context import SlotContext, begin_with, common_tokens, draft_ids, sub_tokens
from anydraft.plugins.sglang.modules import PrunedHead, TargetEmbedding
from anydraft.plugins.sglang.options import read_context
from anydraft.plugins.sglang.pair import Pair, read_pair


class SlotWorker(StandaloneWorkerV2):
    """SGLang's worker for a draft of the target's vocabulary, with a draft made to look like one."""

    def _validate_vocab_compatibility(self, *args: Any, **kwargs: Any) -> None:
        """The vocabularies may differ; :func:`speak_target_ids` sees to that."""

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Called once the weights are there and before anything is captured."""
        super().alloc_memory_pool(**kwargs)
        target_rows = int(self._target_worker.model_runner.model_config.vocab_size)
        draft = self._draft_worker
        pair = read_pair(self.server_args)
        context = read_context(os.environ)
        assert context != "retokenized", "that draft runs beside SGLang"
        draft.hot_token_id = speak_target_ids(draft.draft_runner.model, pair, target_rows, context)
        if context == "last" and pair.draft.vocabulary.bos_id is not None:
            draft._draft_extend_for_prefill = beginning_with(draft._draft_extend_for_prefill, target_rows)


def beginning_with(extend: Callable[..., Any], first: int) -> Callable[..., Any]:
    """``extend``, the draft's reading of prompts, with ``first`` at the beginning of each; see
    :func:`~anydraft.plugins.sglang.context.begin_with`."""

    def extend_with_first(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.forward_mode.is_idle():
            batch.input_ids = begin_with(batch.input_ids, batch.extend_lens, batch.prefix_lens, first)
        return extend(batch, *args, **kwargs)

    return extend_with_first


def speak_target_ids(model: Any, pair: Pair, target_rows: int, context: SlotContext) -> torch.Tensor:
    """Have ``model``, the draft, read target ids and write only tokens that the target has.

    Args:
        target_rows: of the target's LM head.
        context: see :func:`~anydraft.plugins.sglang.context.draft_ids`.

    Returns:
        int64 [A], the target id of each of its remaining logits.

    Raises:
        ModelError: its embedding or LM head are not where dense decoders have them.
    """
    embedding, weight = _ends(model, pair.info.name)
    device = weight.device
    common, target_ids = common_tokens(pair.bridge, target_rows, len(weight))
    subs = sub_tokens(pair.bridge, pair.draft, target_rows, len(weight))
    reads = torch.from_numpy(draft_ids(subs, pair.bridge, context))
    model.lm_head = PrunedHead(weight, common)
    model.model.embed_tokens = TargetEmbedding(embedding, reads.to(device), model.lm_head)
    return target_ids.to(device)


def _ends(model: Any, name: str) -> tuple[Any, torch.Tensor]:
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    weight = getattr(getattr(model, "lm_head", None), "weight", None)
    if embedding is None or weight is None or weight.dim() != 2 or not weight.is_floating_point():
        raise ModelError(
            f"the draft {name} ({type(model).__name__}) has no plain model.embed_tokens and lm_head in SGLang; use a "
            "dense decoder such as Qwen, Llama or Gemma with an LM head that is not quantized, or "
            "ANYDRAFT_TLI_CONTEXT=retokenized, with which AnyDraft runs it"
        )
    return embedding, weight
