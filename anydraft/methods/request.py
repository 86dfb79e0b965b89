"""What every proposer starts from: the draft's context and the draft's temperature in one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anydraft.methods.base import DraftSettings, Prompt
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.retokenize import DraftContext
from anydraft.vocab.tokenizer import Tokenizer


class Context(Protocol):
    """A request's text in the draft's ids."""

    @property
    def ids(self) -> Sequence[int]: ...

    def append(self, target_ids: Sequence[int]) -> int:
        """Add what the target emitted; how many leading ids stayed as they were."""
        ...


def retokenized_context(tokenizer: Tokenizer, bridge: Bridge, prompt: Prompt) -> DraftContext:
    """The draft's own rendering of the conversation, or its BOS and the prompt's text in its own tokens."""
    if prompt.draft_ids is not None:
        return DraftContext(tokenizer, bridge, prompt.draft_ids)
    bos = bridge.draft.bos_id
    context = DraftContext(tokenizer, bridge, [] if bos is None else [bos])
    context.append(prompt.target_ids)
    return context


def draft_temperature(prompt: Prompt, settings: DraftSettings, default: float) -> float:
    """The draft's temperature in this request; 0 (greedy) where the request is greedy or has no noise."""
    if prompt.temperature == 0.0 or prompt.noise is None:
        return 0.0
    for choice in (prompt.draft_temperature, settings.draft_temperature):
        if choice is not None:
            return choice
    return default
