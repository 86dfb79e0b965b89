"""The two ends of a draft that speaks the target's ids: its embedding and its LM head."""

from __future__ import annotations

from typing import Any

import torch


class PrunedHead(torch.nn.Module):
    """Only the rows of an LM head that may be drafted, [A, hidden]."""

    def __init__(self, weight: torch.Tensor, draft_ids: torch.Tensor) -> None:
        super().__init__()
        rows = weight.detach()[draft_ids.to(weight.device)].contiguous()
        self.weight = torch.nn.Parameter(rows, requires_grad=False)


class TargetEmbedding(torch.nn.Module):
    """The draft's embedding, addressed by target ids.

    Args:
        inner: the draft's own, with whatever scaling it does.
        draft_ids: int64 [target rows], the draft id to look up for each target id.
        head: a model whose two ends are tied (Gemma) takes the embedding for its LM head, and finds this one's weight.
    """

    draft_ids: torch.Tensor

    def __init__(self, inner: Any, draft_ids: torch.Tensor, head: PrunedHead) -> None:
        super().__init__()
        self.inner = inner
        self.weight = head.weight
        self.register_buffer("draft_ids", draft_ids, persistent=False)

    def forward(self, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        embedded: torch.Tensor = self.inner(self.draft_ids[ids], *args, **kwargs)
        return embedded
