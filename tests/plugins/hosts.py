"""A host engine without models: schedules rows as vLLM does, with a table for a target."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.proof.worlds import Table

Propose = Callable[[list[list[int]], np.ndarray, np.ndarray], list[list[int]]]


@dataclass
class HostRequest:
    """A request of the host; the drafter never sees its name."""

    name: str
    prompt: list[int]
    max_tokens: int
    output: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    computed: int = 0
    """Prompt tokens read so far; less than all: the row emits nothing."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.output]


class TableHost:
    """Runs greedy requests to their end; ``trouble`` says how often it reorders, preempts and aborts.

    Args:
        propose: vLLM's ``propose``, as in its custom_class interface.
        chunk: prompt tokens read a step.
    """

    def __init__(
        self,
        table: Table,
        propose: Propose,
        *,
        max_rows: int = 4,
        chunk: int = 100,
        trouble: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.table = table
        self.propose = propose
        self.max_rows = max_rows
        self.chunk = chunk
        self.trouble = trouble
        self.random = random.Random(seed)
        self.waiting: list[HostRequest] = []
        self.rows: list[HostRequest] = []
        self.finished: dict[str, list[int]] = {}
        self.num_steps = 0
        self.num_accepted = 0
        self.on_step: Callable[[Sequence[HostRequest]], None] = lambda emitting: None

    def run(self, requests: Sequence[HostRequest], max_steps: int = 10_000) -> dict[str, list[int]]:
        self.waiting = list(requests)
        while (self.waiting or self.rows) and self.num_steps < max_steps:
            self.step()
        return self.finished

    def step(self) -> None:
        self.num_steps += 1
        while self.waiting and len(self.rows) < self.max_rows:
            self.rows.append(self.waiting.pop(0))
        self._disturb()
        sampled = [self._advance(request) for request in self.rows]
        width = max((len(request.ids) for request in self.rows), default=1)
        tokens = np.full((self.max_rows + 2, width + 7), -7, dtype=np.int32)
        lengths = np.zeros(self.max_rows + 2, dtype=np.int32)
        for i, request in enumerate(self.rows):
            tokens[i, : len(request.ids)] = request.ids
            lengths[i] = len(request.ids)
        self.on_step([r for r, emitted in zip(self.rows, sampled, strict=True) if emitted])
        drafts = self.propose(sampled, lengths, tokens)
        assert len(drafts) == len(self.rows)
        for request, emitted, proposed in zip(self.rows, sampled, drafts, strict=True):
            assert emitted or not proposed, "a row in the middle of its prompt got drafts"
            request.drafts = proposed
        for request in [r for r in self.rows if len(r.output) >= r.max_tokens]:
            self.finished[request.name] = request.output[: request.max_tokens]
            self._leave(request)

    def _advance(self, request: HostRequest) -> list[int]:
        """What the target emits: the accepted drafts and one token of its own."""
        if request.computed < len(request.ids):
            request.computed += self.chunk
            if request.computed < len(request.ids):
                return []
        emitted = []
        for draft in [*request.drafts, None]:
            emitted.append(int(self.table.logits(tuple(request.ids)).argmax()))
            request.output.append(emitted[-1])
            if draft != emitted[-1]:
                break
            self.num_accepted += 1
        request.computed = len(request.ids)
        request.drafts = []
        return emitted

    def _disturb(self) -> None:
        for request in list(self.rows):
            if self.random.random() < self.trouble:
                kind = self.random.choice(["preempt", "skip", "abort", "shuffle"])
                if kind == "shuffle":
                    self.random.shuffle(self.rows)
                    continue
                self._leave(request)
                if kind == "preempt":  # everything is read again, in chunks
                    request.computed, request.drafts = 0, []
                    self.waiting.append(request)
                elif kind == "skip":
                    self.waiting.append(request)
                elif kind == "abort":
                    self.finished[request.name] = request.output

    def _leave(self, request: HostRequest) -> None:
        """The last row moves into the freed one."""
        last = self.rows.pop()
        if last is not request:
            self.rows[self.rows.index(request)] = last


def alone(table: Table, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The table's own greedy text."""
    ids = list(prompt)
    for _ in range(max_tokens):
        ids.append(int(table.logits(tuple(ids)).argmax()))
    return ids[len(prompt) :]
