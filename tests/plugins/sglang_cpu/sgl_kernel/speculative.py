"""Trees of drafted tokens."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """From ``tree_mask`` bool [B * n * n] (row: a node, column: an ancestor) to each node's position [B * n] and
    links [B, n]: first child and next sibling, -1 where there is none."""
    n = draft_token_num
    trees = tree_mask[: batch_size * n * n].view(batch_size, n, n)
    for b in range(batch_size):
        above = [[j for j in range(i) if trees[b, i, j]] for i in range(n)]
        parents = [nodes[-1] if nodes else -1 for nodes in above]
        for i in range(n):
            positions[b * n + i] = verified_seq_len[b] + len(above[i])
            retrive_index[b, i] = b * n + i
            retrive_next_token[b, i] = next((k for k in range(i + 1, n) if parents[k] == i), -1)
            siblings = (k for k in range(i + 1, n) if parents[i] >= 0 and parents[k] == parents[i])
            retrive_next_sibling[b, i] = next(siblings, -1)
