"""Tiny worlds: toy tokenizers, and models that are tables."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from anydraft.methods.base import Answer, Ask, Drafted, Expand, Rollout
from anydraft.rules.params import SamplingParams
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.vocabulary import Control, Role, Vocabulary


class ToyTokenizer:
    """Greedy longest match over bytes, with ids in the order of ``pieces``, control tokens last."""

    def __init__(
        self, pieces: Sequence[str | bytes], controls: Sequence[str] = (), bos: str | None = None
    ) -> None:
        tokens: list[bytes | None] = [p.encode() if isinstance(p, str) else p for p in pieces]
        roles = {"<eos>": Role.EOS, "<bos>": Role.BOS, "<pad>": Role.PAD}
        marks = {}
        for surface in controls:
            marks[len(tokens)] = Control(len(tokens), roles.get(surface, Role.OTHER), surface)
            tokens.append(None)
        ends = [i for i, c in marks.items() if c.role is Role.EOS]
        starts = [i for i, c in marks.items() if c.surface == bos]
        self.vocabulary = Vocabulary(
            tuple(tokens),
            marks,
            stop_ids=frozenset(ends),
            bos_id=starts[0] if starts else None,
            eos_id=ends[0] if ends else None,
        )
        self._ids: dict[bytes, int] = {}
        for i, data in self.vocabulary.text_items():
            self._ids.setdefault(data, i)
        self._longest = max(map(len, self._ids))

    def encode(self, text: str) -> list[int]:
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                found = self._ids.get(data[at : at + size])
                if found is not None:
                    ids.append(found)
                    at += size
                    break
            else:
                at += 1
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        return self.encode(text)


class MergeTokenizer(ToyTokenizer):
    """Byte pairs merged in the order of ``merges``: "ab" + "c" and "a" + "bc" come out differently."""

    def __init__(
        self,
        alphabet: str,
        merges: Sequence[tuple[str, str]],
        controls: Sequence[str] = (),
        bos: str | None = None,
    ) -> None:
        super().__init__([*alphabet, *(a + b for a, b in merges)], controls, bos)
        self._merges = [(a.encode(), b.encode()) for a, b in merges]

    def encode(self, text: str) -> list[int]:
        parts = [bytes([b]) for b in text.encode()]
        for left, right in self._merges:
            merged: list[bytes] = []
            for part in parts:
                if merged and merged[-1] == left and part == right:
                    merged[-1] = left + right
                else:
                    merged.append(part)
            parts = merged
        return [self._ids[part] for part in parts]


class Table:
    """A language model that is a table: logits, float64 [V], as a fixed random function of the history."""

    def __init__(
        self, vocab_size: int, seed: int, sharpness: float = 1.0, forbidden: Sequence[int] = ()
    ) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._sharpness = sharpness
        self._forbidden = list(forbidden)
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, history: tuple[int, ...]) -> torch.Tensor:
        row = self._rows.get(history)
        if row is None:
            key = zlib.crc32(np.array([self._seed, *history], dtype=np.int64).tobytes())
            values = np.random.default_rng(key).normal(size=self.vocab_size) * self._sharpness
            values[self._forbidden] = -np.inf
            row = self._rows[history] = torch.from_numpy(values)
        return row


class TableDraft:
    """A :class:`~anydraft.methods.base.DraftBackend` over a :class:`Table`, in float64.

    It checks what a real backend relies on: that ``stable`` ids of the context did not change.
    """

    def __init__(self, table: Table, tokenizer: ToyTokenizer) -> None:
        self.table = table
        self.tokenizer = tokenizer
        self.vocab_size = table.vocab_size
        self._last: dict[Hashable, tuple[int, ...]] = {}
        self.num_asks = 0

    def release(self, key: Hashable) -> None:
        self._last.pop(key, None)

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        self.num_asks += 1
        return {key: self._answer(key, ask) for key, ask in asks.items()}

    def _answer(self, key: Hashable, ask: Ask) -> Answer:
        context = tuple(ask.context)
        assert context, "a draft cannot go on from nothing"
        before = self._last.get(key, ())
        assert ask.stable <= min(len(before), len(context))
        assert context[: ask.stable] == before[: ask.stable], "ids that were called stable changed"
        self._last[key] = context
        return self._expand(ask, context) if isinstance(ask, Expand) else self._roll_out(ask, context)

    def row(self, history: tuple[int, ...], temperature: float, allowed: torch.Tensor | None) -> torch.Tensor:
        logits = self.table.logits(history)[: len(self.tokenizer.vocabulary)]
        if allowed is not None:
            logits = logits[allowed]
        if temperature == 0.0:
            return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
        return torch.softmax(logits / temperature, dim=-1)

    def _expand(self, ask: Expand, context: tuple[int, ...]) -> torch.Tensor:
        return torch.stack([self.row(context + path, ask.temperature, None) for path in ask.paths])

    def _roll_out(self, ask: Rollout, context: tuple[int, ...]) -> Drafted:
        drawn: list[int] = []
        rows = []
        survival = 1.0
        for i in range(ask.max_tokens):
            row = self.row((*context, *drawn), ask.temperature, ask.allowed)
            survival *= float(row.max())
            if float(row.max()) < ask.min_confidence:
                break
            if ask.temperature == 0.0:
                index = int(row.argmax())
            else:
                assert ask.noise is not None
                index = ask.noise.categorical(row, "draft", ask.position + i)
            drawn.append(index if ask.allowed is None else int(ask.allowed[index]))
            rows.append(row)
            if drawn[-1] in ask.stop_ids or survival < ask.min_survival:
                break
        return Drafted(tuple(drawn), torch.stack(rows) if ask.keep_rows and rows else None)


@dataclass(frozen=True)
class World:
    """A pair of toy models, a prompt and a request."""

    name: str
    target: ToyTokenizer
    draft: ToyTokenizer
    prompt: str = "a"
    params: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=3))
    num_speculative_tokens: int = 2
    draft_temperature: float | None = None
    min_confidence: float = 0.0
    seed: int = 0
    padding: int = 0
    """Rows of the target's head beyond its tokenizer's ids."""
    capped: bool = True
    """Whether proposals are capped by the remaining budget; else blocks end in the middle."""
    forbidden: tuple[int, ...] = ()
    """Target ids of probability 0."""
    forbidden_drafts: tuple[int, ...] = ()
    """Draft ids of probability 0."""

    @cached_property
    def bridge(self) -> Bridge:
        return Bridge(self.target.vocabulary, self.draft.vocabulary)

    @cached_property
    def target_table(self) -> Table:
        size = len(self.target.vocabulary) + self.padding
        return Table(size, 2 * self.seed + 1, sharpness=1.2, forbidden=self.forbidden)

    @cached_property
    def draft_table(self) -> Table:
        size = len(self.draft.vocabulary) + 2
        return Table(size, 2 * self.seed + 2, forbidden=self.forbidden_drafts)

    @cached_property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.target.encode(self.prompt))

    @property
    def stop_ids(self) -> frozenset[int]:
        own = frozenset() if self.params.ignore_eos else self.target.vocabulary.stop_ids
        return own | frozenset(self.params.stop_token_ids or ())
