"""What a draft that never errs would reach: the ceiling that two tokenizers alone put on a method.

No model is run. A perfect draft writes exactly the text that the target would write, in the draft's own
tokens; how much of it arrives as target tokens depends on the two tokenizers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from anydraft.vocab.bridge import Bridge
from anydraft.vocab.text import encode_bytes
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.translate import Translator

NUM_SPECULATIVE_TOKENS = 5
"""Draft tokens a step."""

_AHEAD = 40
"""Bytes of text that are tokenized ahead for each draft token of a step."""
_TAIL = 64
"""Target ids that the translation may look back on."""


@dataclass(frozen=True)
class BestCase:
    """Acceptance lengths of a perfect draft: target tokens a target call, the target's own one included.

    Attributes:
        token_rule: under the token rule (TLI, standard): a draft token counts while it is the target's.
        string_rule: under the string rule (SLEM): the drafted text counts while it translates to the
            target's tokens.
    """

    token_rule: float
    string_rule: float


def best_case(text: str, target: Tokenizer, draft: Tokenizer, bridge: Bridge) -> BestCase:
    """Walk through ``text`` with both rules, :data:`NUM_SPECULATIVE_TOKENS` draft tokens a step."""
    target_ids = target.encode_continuation(text)
    tokens = target.vocabulary.tokens
    data = target.vocabulary.bytes_of(target_ids)
    starts = [0, *accumulate(len(tokens[i] or b"") for i in target_ids)]
    translator = Translator(target, draft.vocabulary, bridge)

    def drafted(at: int) -> list[int]:
        ahead = data[starts[at] : starts[at] + _AHEAD * NUM_SPECULATIVE_TOKENS]
        return encode_bytes(draft, ahead, continuation=True)[:NUM_SPECULATIVE_TOKENS]

    def by_tokens(at: int) -> Sequence[int]:
        return [int(bridge.draft_to_target[i]) for i in drafted(at)]

    def by_text(at: int) -> Sequence[int]:
        return translator.translate(target_ids[max(0, at - _TAIL) : at], drafted(at))

    return BestCase(_acceptance_length(target_ids, by_tokens), _acceptance_length(target_ids, by_text))


def _acceptance_length(target_ids: Sequence[int], propose: Callable[[int], Sequence[int]]) -> float:
    """Target tokens a step where each step proposes ``propose(position)``; 1 for an empty text."""
    at = steps = 0
    while at < len(target_ids):
        for guess in propose(at):
            if at == len(target_ids) or guess != target_ids[at]:
                break
            at += 1
        at += 1  # the target's own token
        steps += 1
    return min(at, len(target_ids)) / steps if steps else 1.0
