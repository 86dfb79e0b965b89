"""What the draft reads in place of each target token, one draft token for one target token.

A draft at the target's positions has as many tokens as the target, so a target token outside the intersection must
become one token of the draft's. Pure functions of the two vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from anydraft.errors import PairError
from anydraft.methods.tli import intersection_map
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.text import encode_bytes
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Role, Vocabulary

Ids = npt.NDArray[np.int64]
SlotContext = Literal["last", "eos"]


def common_tokens(bridge: Bridge, target_rows: int, draft_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The draft ids that may be drafted and the target id of each, int64 [A] both, by ascending draft id.

    Args:
        target_rows, draft_rows: of the two LM heads.

    Raises:
        PairError: not one text token in common.
    """
    try:
        tokens = intersection_map(bridge, target_rows)
    except PairError as error:
        raise PairError(
            "the target and the draft have no text token in common, which ANYDRAFT_TLI needs; use "
            "--speculative-algorithm ANYDRAFT_SLEM, which compares text"
        ) from error
    assert tokens.allowed is not None, "an intersection lists its ids"
    inside = tokens.allowed < draft_rows
    return tokens.allowed[inside], tokens.target_ids[inside]


def sub_tokens(bridge: Bridge, tokenizer: Tokenizer, target_rows: int, draft_rows: int) -> list[list[int]]:
    """For each of the target's rows the draft ids that say the same, at least one each.

    A token of the intersection is its counterpart; another the retokenization of its text as the continuation of
    other text, a control token without counterpart the text that the target writes it as. What stands for no text
    (padding, unknown, rows beyond the vocabulary) is the draft's :func:`filler`.

    Args:
        tokenizer: the draft's.
        target_rows: of the target's embedding.
        draft_rows: of the draft's embedding.
    """
    target = bridge.target
    nothing = [filler(bridge.draft)]
    found: list[list[int]] = []
    for i in range(target_rows):
        mapped = int(bridge.target_to_draft[i]) if i < len(target) else -1
        if 0 <= mapped < draft_rows:
            found.append([mapped])
            continue
        ids = encode_bytes(tokenizer, _text(target, i), continuation=True)
        found.append([d for d in ids if d < draft_rows] or nothing)
    return found


def filler(draft: Vocabulary) -> int:
    """A draft id that says nothing: its BOS, or else an end token, or else the first id."""
    if draft.bos_id is not None:
        return draft.bos_id
    return draft.eos_id if draft.eos_id is not None else min(draft.stop_ids, default=0)


def draft_ids(subs: list[list[int]], bridge: Bridge, context: SlotContext) -> Ids:
    """The one draft id for each target id, int64 [rows + 1]; id ``rows`` is no target id and reads :func:`filler`,
    the draft's BOS if it has one.

    Args:
        subs: see :func:`sub_tokens`.
        context: "last": the last of them, on which what comes next depends most. "eos": the draft's end token for
            what is outside the intersection, as others do (who give no BOS either); for comparison.
    """
    ids = np.array([*(ids[-1] for ids in subs), filler(bridge.draft)], dtype=np.int64)
    if context == "eos":
        end = bridge.draft.eos_id
        mapped = np.full(len(ids), -1, dtype=np.int64)
        known = bridge.target_to_draft[: len(subs)]
        mapped[: len(known)] = known
        mapped[-1] = ids[-1]
        ids[mapped < 0] = filler(bridge.draft) if end is None else end
    return ids


def begin_with(
    ids: torch.Tensor, extend_lens: Sequence[int], prefix_lens: Sequence[int], first: int
) -> torch.Tensor:
    """``ids`` as a draft with a BOS must be given them, a copy.

    SGLang moves a prompt's ids one place to the left before a draft reads them, so that the draft's first slot holds
    the second token. There the draft reads ``first`` instead; a prompt of one token has no such place.

    Args:
        ids: int64 [tokens], what the batch reads of its prompts, one after the other.
        extend_lens, prefix_lens: [B], how many ids of each prompt are read now, and how many were before.
    """
    ids = ids.clone()
    start = 0
    for extend, prefix in zip(extend_lens, prefix_lens, strict=True):
        if prefix == 0 and extend > 1:
            ids[start + 1] = first
        start += extend
    return ids


def _text(target: Vocabulary, i: int) -> bytes:
    if i >= len(target):
        return b""
    if (data := target.tokens[i]) is not None:
        return data
    control = target.controls.get(i)
    if control is None or control.role in (Role.BOS, Role.PAD, Role.UNK):
        return b""
    return control.surface.encode()
