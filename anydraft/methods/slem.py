"""SLEM: string-level exact match (Timor et al., arXiv 2502.05202, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anydraft.methods.base import EMPTY, DraftSettings, Prompt, Proposal, ProposalGenerator
from anydraft.methods.request import Context, retokenized_context
from anydraft.methods.rollouts import Rollouts
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.translate import Translator

_TAIL = 16  # known target ids, of which the translator re-encodes the last few


class SLEM:
    """The draft writes with its full vocabulary; its text is translated and checked by exact match.

    Any pair of vocabularies will do. Drafts are greedy by default at any temperature: a draft that is the
    draft's mode is accepted with p(draft token), which beats a sampled one on real pairs.

    Args:
        bridge: of the pair of vocabularies.
        target_tokenizer, draft_tokenizer: of the two.
    """

    name = "slem"

    def __init__(
        self,
        bridge: Bridge,
        target_tokenizer: Tokenizer,
        draft_tokenizer: Tokenizer,
        settings: DraftSettings | None = None,
    ) -> None:
        self.bridge = bridge
        self.draft_tokenizer = draft_tokenizer
        self.settings = settings or DraftSettings()
        self.translator = Translator(target_tokenizer, bridge.draft, bridge)
        # Drawing a control token or an unused id ends a draft; the translator knows which of them is an end.
        self.silent_ids = frozenset(i for i, data in enumerate(bridge.draft.tokens) if not data)
        self.race_ids = torch.from_numpy(bridge.draft_to_target)

    def start(self, prompt: Prompt) -> SLEMProposer:
        context = retokenized_context(self.draft_tokenizer, self.bridge, prompt)
        return SLEMProposer(self, prompt, context)


class SLEMProposer:
    """One request: the draft's context and the last target ids, on which a translation leans."""

    def __init__(self, method: SLEM, prompt: Prompt, context: Context) -> None:
        self._translator = method.translator
        self._tail = list(prompt.target_ids[-_TAIL:])
        self._rollouts = Rollouts(
            prompt,
            context,
            method.settings,
            default_temperature=0.0,
            race_ids=method.race_ids,
            stop_ids=method.silent_ids,
        )

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        # A draft token seldom makes more than one target token: more than what may be proposed is in vain.
        drafted = yield from self._rollouts.draft(max_target_tokens, min_survival)
        if not drafted.token_ids:
            return EMPTY
        ids = self._translator.translate(self._tail, drafted.token_ids)
        return Proposal(tuple(ids[:max_target_tokens]), num_draft_tokens=len(drafted.token_ids))

    def observe(self, token_ids: Sequence[int]) -> None:
        self._rollouts.observe(token_ids)
        self._tail = (self._tail + list(token_ids))[-_TAIL:]
