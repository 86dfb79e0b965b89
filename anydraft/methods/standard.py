"""Standard speculative decoding: one vocabulary, or two that differ in a few ids or in padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anydraft.errors import PairError
from anydraft.methods.base import DraftSettings, Prompt
from anydraft.methods.token_rule import TokenMap, TokenProposer
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.text import encode_bytes
from anydraft.vocab.tokenizer import Tokenizer


class Standard:
    """Ids cross one to one and the draft's context is never tokenized again.

    Ids that the two vocabularies do not share are never proposed; in the context they stand as their
    bytes in the draft's tokens.

    Args:
        bridge: of the pair of vocabularies.
        tokenizer: the draft's.
        target_vocab_size: V_target, the width of the target's rows.

    Raises:
        PairError: the vocabularies are not nearly the same.
    """

    name = "standard"

    def __init__(
        self,
        bridge: Bridge,
        tokenizer: Tokenizer,
        target_vocab_size: int,
        settings: DraftSettings | None = None,
    ) -> None:
        if not bridge.nearly_same:
            raise PairError(
                f"method standard needs (nearly) equal vocabularies, but {len(bridge.differing)} of "
                f"{bridge.num_common} common ids differ; use method tli or slem."
            )
        self._bridge = bridge
        self._tokenizer = tokenizer
        self._settings = settings or DraftSettings()
        ids = torch.arange(len(bridge.draft))
        whole = bridge.same_vocabulary and len(bridge.draft) <= min(len(bridge.target), target_vocab_size)
        if not whole:
            mapped = torch.from_numpy(bridge.draft_to_target)
            ids = torch.nonzero((mapped == ids) & (mapped < target_vocab_size)).flatten()
        self._tokens = TokenMap(
            allowed=None if whole else ids,
            target_ids=ids,
            stop_ids=bridge.draft.stop_ids,
            target_vocab_size=target_vocab_size,
        )

    def start(self, prompt: Prompt) -> TokenProposer:
        context = DirectContext(self._bridge, self._tokenizer, prompt.draft_ids or ())
        if prompt.draft_ids is None:
            context.append(prompt.target_ids)
            bos = self._bridge.draft.bos_id
            if bos is not None and context.ids[:1] != [bos]:
                context.ids.insert(0, bos)
        return TokenProposer(prompt, context, self._tokens, self._settings)


class DirectContext:
    """The target's ids one by one; an id that the draft lacks is written in the draft's own tokens."""

    def __init__(self, bridge: Bridge, tokenizer: Tokenizer, prefix_ids: Sequence[int] = ()) -> None:
        self.ids = list(prefix_ids)
        self._bridge = bridge
        self._tokenizer = tokenizer

    def append(self, target_ids: Sequence[int]) -> int:
        """Add ``target_ids``; the ids before them all stay."""
        before = len(self.ids)
        known = len(self._bridge.target_to_draft)
        for target_id in target_ids:
            draft_id = int(self._bridge.target_to_draft[target_id]) if target_id < known else -1
            if draft_id >= 0:
                self.ids.append(draft_id)
            else:
                data = self._bridge.target.bytes_of([target_id])
                self.ids += encode_bytes(self._tokenizer, data, continuation=True)
        return before
