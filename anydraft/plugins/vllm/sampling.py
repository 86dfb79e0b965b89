"""Faults of vLLM on CPUs that break sampling with drafts: found by behaviour, repaired only where found.

On CPUs without Triton, ``expand_batch_to_tokens`` gives back uninitialised memory unless its input is int64, so
that temperature, top_k and top_p of sampled requests become garbage (vllm-project/vllm issue 55005). And top_k of a
step that verifies no drafted token at all, as it comes about when every request's drafts were dropped, ends the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger("vllm.anydraft")

Expand = Callable[..., torch.Tensor]
Apply = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """[batch] -> [num_tokens]: element i stands from ``cu_num_tokens[i - 1]`` to ``cu_num_tokens[i]``, with
    ``replace_from`` replaced by ``replace_to``."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = x.masked_fill(x == replace_from, replace_to)
    return replaced.repeat_interleave(counts, output_size=num_tokens)


def expands_rightly(expand: Expand) -> bool:
    """Whether ``expand`` gives what :func:`expand_batch_to_tokens` gives, for each dtype that vLLM passes."""
    ends = torch.tensor([2, 5, 9], dtype=torch.int32)
    for x in (torch.tensor([0.7, 1.3, 2.9]), torch.tensor([7, 0, 20], dtype=torch.int32)):
        if not torch.equal(expand(x, ends, 9, 0, 1), expand_batch_to_tokens(x, ends, 9, 0, 1)):
            return False
    return True


def cuts_nothing(apply: Apply) -> bool:
    """Whether ``apply`` (top_k and top_p of logits [n, V]) takes no rows."""
    try:
        return len(apply(torch.empty(0, 2), torch.empty(0, dtype=torch.int32), None)) == 0
    except (RuntimeError, IndexError):
        return False


def repair_sampling(rejection_sampler: Any) -> bool:
    """Replace of the module's functions those that are wrong; whether there was one."""
    wrong = not expands_rightly(rejection_sampler.expand_batch_to_tokens)
    if wrong:
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
        logger.warning(
            "AnyDraft: this vLLM's expand_batch_to_tokens returns wrong values on this CPU, which breaks sampling "
            "with drafts (vllm-project/vllm issue 55005); AnyDraft's own is used in its place"
        )
    apply: Apply = rejection_sampler.apply_top_k_top_p
    if not cuts_nothing(apply):
        wrong = True
        rejection_sampler.apply_top_k_top_p = lambda logits, k, p: (
            apply(logits, k, p) if len(logits) else logits
        )
        logger.warning(
            "AnyDraft: this vLLM's top_k fails on a step without drafted tokens; such steps leave it out"
        )
    return wrong
