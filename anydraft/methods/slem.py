"""SLEM: string-level exact match (Timor et al., arXiv 2502.05202, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anydraft.methods.base import EMPTY, Drafted, DraftSettings, Prompt, Proposal, ProposalGenerator, Rollout
from anydraft.methods.request import Context, draft_temperature, retokenized_context
from anydraft.rules.noise import CoupledNoise, Noise
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
        self._method = method
        self._context = context
        self._tail = list(prompt.target_ids[-_TAIL:])
        self._temperature = draft_temperature(prompt, method.settings, default=0.0)
        self._noise: Noise | None = prompt.noise
        self._coupled = isinstance(prompt.noise, CoupledNoise)
        if isinstance(prompt.noise, CoupledNoise) and self._temperature > 0.0:
            self._noise = prompt.noise.for_draft(method.race_ids)
        self._stable = 0
        self._num_draws = 0
        self._num_outputs = 0

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        settings = self._method.settings
        # A draft token seldom makes more than one target token: more than what may be proposed is in vain.
        count = min(settings.num_speculative_tokens, max_target_tokens)
        if count < 1 or not self._context.ids:
            return EMPTY
        sampled = self._temperature > 0.0
        drafted = yield Rollout(
            context=self._context.ids,
            stable=self._stable,
            max_tokens=count,
            temperature=self._temperature,
            stop_ids=self._method.silent_ids,
            min_confidence=settings.min_confidence,
            min_survival=min_survival,
            noise=self._noise if sampled else None,
            position=self._num_outputs if self._coupled else self._num_draws,
        )
        assert isinstance(drafted, Drafted)
        self._stable = len(self._context.ids)
        self._num_draws += count
        ids = self._method.translator.translate(self._tail, drafted.token_ids)
        return Proposal(tuple(ids[:max_target_tokens]), num_draft_tokens=len(drafted.token_ids))

    def observe(self, token_ids: Sequence[int]) -> None:
        self._stable = min(self._stable, self._context.append(token_ids))
        self._tail = (self._tail + list(token_ids))[-_TAIL:]
        self._num_outputs += len(token_ids)
