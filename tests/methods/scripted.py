"""A draft that writes a given text, whatever it was asked for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

from anydraft.methods.base import Answer, Ask, Drafted, Expand, Proposal, Proposer, Rollout, drive
from tests.proof.worlds import ToyTokenizer


class ScriptedDraft:
    """A :class:`~anydraft.methods.base.DraftBackend` that draws ``script`` (draft ids) and keeps the asks."""

    def __init__(self, tokenizer: ToyTokenizer, script: list[int]) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = len(tokenizer.vocabulary)
        self.script = script
        self.asks: list[Rollout] = []
        self.contexts: list[list[int]] = []

    def release(self, key: Hashable) -> None:
        del key

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        answers: dict[Hashable, Answer] = {}
        for key, ask in asks.items():
            assert not isinstance(ask, Expand)
            self.asks.append(ask)
            self.contexts.append(list(ask.context))
            drawn: list[int] = []
            for token in self.script[: ask.max_tokens]:
                if ask.allowed is not None and token not in ask.allowed:
                    break
                drawn.append(token)
                if token in ask.stop_ids:
                    break
            rows = None
            if ask.keep_rows and drawn:
                size = self.vocab_size if ask.allowed is None else len(ask.allowed)
                rows = torch.full((len(drawn), size), 1.0 / size)
            answers[key] = Drafted(tuple(drawn), rows)
        return answers


def propose(proposer: Proposer, backend: ScriptedDraft, room: int = 100) -> Proposal:
    return drive({"r": proposer.propose(room)}, backend)["r"]
