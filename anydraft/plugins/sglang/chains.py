"""Drafted tokens as the trees of fixed width that SGLang's NGRAM verifies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PAD = 0


def chains(
    last_ids: Sequence[int], drafts: Sequence[Sequence[int]], width: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Each row's last token and what is drafted after it, as a tree without branches.

    A short draft is padded: a pad is one more guess, which the target rejects unless it happens to be its choice.

    Args:
        last_ids: [B], of each row.
        drafts: [B], at most ``width - 1`` ids each.
        width: n, nodes of a tree.

    Returns:
        Tokens, int64 [B * n], and ancestors with the node itself, bool [B * n * n], row-major.
    """
    tokens = np.full((len(last_ids), width), PAD, dtype=np.int64)
    for row, (last, draft) in enumerate(zip(last_ids, drafts, strict=True)):
        tokens[row, : 1 + len(draft)] = [last, *draft]
    ancestors = np.tril(np.ones((width, width), dtype=np.bool_))
    return tokens.reshape(-1), np.broadcast_to(ancestors, (len(last_ids), width, width)).reshape(-1)
