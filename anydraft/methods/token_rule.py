"""What TLI and standard drafting share: the draft's tokens cross to the target one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from anydraft.methods.base import EMPTY, DraftSettings, Prompt, Proposal, ProposalGenerator
from anydraft.methods.request import Context
from anydraft.methods.rollouts import Rollouts


@dataclass(frozen=True, eq=False)
class TokenMap:
    """The draft ids that may be drawn and the target id of each.

    Attributes:
        allowed: int64 [A], ascending draft ids, or None: every id, with the same id in the target.
        target_ids: int64 [A], the target id of each of ``allowed`` (several may share one); where that is
            None, the ids themselves.
        stop_ids: draft ids after which nothing more is proposed.
        target_vocab_size: V_target, the width of the target's rows.
    """

    allowed: torch.Tensor | None
    target_ids: torch.Tensor
    stop_ids: frozenset[int]
    target_vocab_size: int

    @cached_property
    def _target_of(self) -> dict[int, int] | None:
        if self.allowed is None:
            return None
        return dict(zip(self.allowed.tolist(), self.target_ids.tolist(), strict=True))

    def to_target(self, draft_ids: Sequence[int]) -> tuple[int, ...]:
        table = self._target_of
        return tuple(draft_ids) if table is None else tuple(table[i] for i in draft_ids)

    def q(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows over the drawable draft ids, [n, A or V_draft] -> [n, V_target]; the probabilities of draft
        ids that share a target id add up."""
        q = rows.new_zeros(len(rows), self.target_vocab_size)
        if self.allowed is None:
            width = min(rows.shape[1], self.target_vocab_size)
            q[:, :width] = rows[:, :width]
            return q
        return q.index_add_(1, self.target_ids.to(rows.device), rows)


class TokenProposer:
    """One request under the token rule: a rollout over the drawable ids, mapped one to one.

    A sampled rollout (draft temperature above 0 in a sampled request) proposes with q, unless the request
    runs coupled: then the draft runs the target's own race and exact match verifies it.
    """

    def __init__(self, prompt: Prompt, context: Context, tokens: TokenMap, settings: DraftSettings) -> None:
        self._tokens = tokens
        self._rollouts = Rollouts(
            prompt,
            context,
            settings,
            default_temperature=prompt.temperature,
            race_ids=tokens.target_ids,
            allowed=tokens.allowed,
            stop_ids=tokens.stop_ids,
        )
        self._keep_rows = self._rollouts.sampled and not self._rollouts.coupled

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        drafted = yield from self._rollouts.draft(max_target_tokens, min_survival, keep_rows=self._keep_rows)
        ids = drafted.token_ids
        if not ids:
            return EMPTY
        q = self._tokens.q(drafted.rows) if drafted.rows is not None else None
        return Proposal(self._tokens.to_target(ids), q, num_draft_tokens=len(ids))

    def observe(self, token_ids: Sequence[int]) -> None:
        self._rollouts.observe(token_ids)
