"""TLI: token-level intersection (Timor et al., arXiv 2502.05202, Algorithm 4)."""

from __future__ import annotations

import torch

from anydraft.errors import PairError
from anydraft.methods.base import DraftSettings, Prompt
from anydraft.methods.request import retokenized_context
from anydraft.methods.token_rule import TokenMap, TokenProposer
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.tokenizer import Tokenizer


class TLI:
    """The draft's distribution restricted to tokens that both vocabularies have, and renormalised.

    q is over target ids, so that rejection or block verification applies. The draft's context is the text
    in the draft's own tokens, not the target's tokens mapped one by one.

    Args:
        bridge: of the pair of vocabularies.
        tokenizer: the draft's.
        target_vocab_size: V_target, the width of the target's rows.

    Raises:
        PairError: not one text token in common; control tokens alone leave nothing to draft.
    """

    name = "tli"

    def __init__(
        self,
        bridge: Bridge,
        tokenizer: Tokenizer,
        target_vocab_size: int,
        settings: DraftSettings | None = None,
    ) -> None:
        self._bridge = bridge
        self._tokenizer = tokenizer
        self._settings = settings or DraftSettings()
        self._tokens = intersection_map(bridge, target_vocab_size)

    def start(self, prompt: Prompt) -> TokenProposer:
        context = retokenized_context(self._tokenizer, self._bridge, prompt)
        return TokenProposer(prompt, context, self._tokens, self._settings)


def intersection_map(bridge: Bridge, target_vocab_size: int) -> TokenMap:
    """The intersection and the draft's end tokens that mean one of the target's.

    Raises:
        PairError: not one text token in common; control tokens alone leave nothing to draft.
    """
    draft_to_target = torch.from_numpy(bridge.draft_to_target)
    allowed = torch.nonzero((draft_to_target >= 0) & (draft_to_target < target_vocab_size)).flatten()
    if not any(bridge.draft.tokens[i] for i in allowed.tolist()):
        raise PairError(
            "the target and the draft have no text token in common, which tli needs; use slem, which compares text."
        )
    return TokenMap(
        allowed=allowed,
        target_ids=draft_to_target[allowed],
        stop_ids=bridge.draft.stop_ids,
        target_vocab_size=target_vocab_size,
    )
