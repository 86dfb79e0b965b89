"""One drafting step for a batch of a host's rows: recognise, observe, propose, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from anydraft.kernels import own_threads
from anydraft.methods.base import (
    EMPTY,
    DraftBackend,
    Method,
    Prompt,
    Proposal,
    ProposalGenerator,
    Proposer,
    drive,
    rows_drafted,
)
from anydraft.methods.costs import CostModel
from anydraft.plugins.report import StepRecord
from anydraft.plugins.requests import RequestTracker, TokenArray, TrackedRequest

LONGEST_STEP = 10.0
"""Seconds; a longer pause between two steps is no forward of the target."""


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the host's batch.

    Attributes:
        ids: int [n], prompt and output so far, target ids; read during the step only.
        emits: whether the target emitted for it in the step just done (not in the middle of its prompt).
        room: tokens that may be proposed at most.
    """

    ids: TokenArray
    emits: bool
    room: int


class Draft(DraftBackend, Protocol):
    """A draft that counts its work; see :class:`~anydraft.plugins.capacity.BoundedDraft`."""

    @property
    def num_forwards(self) -> int: ...

    @property
    def on_kernels(self) -> bool: ...

    @property
    def prefill_time(self) -> float: ...


@dataclass(eq=False)
class _Drafting:
    """A request's proposer, its ids when it first emitted (the first one among them), and its last proposal."""

    proposer: Proposer
    num_first_ids: int
    last: Proposal = EMPTY


class Drafter:
    """Everything between a host's ``propose`` and the method: knows neither the host nor a model.

    Args:
        method: proposes.
        draft: answers the method's asks; None when the method needs no draft model.
        costs: is told what each step took; "auto" decides by it.
        tracker: recognises requests.
        clock: seconds.
        agree: one process's measurement for all that must decide alike (the ranks of one model); each calls
            it for the same measurements in the same order.
    """

    def __init__(
        self,
        method: Method,
        draft: Draft | None,
        costs: CostModel | None = None,
        tracker: RequestTracker | None = None,
        clock: Callable[[], float] = time.perf_counter,
        agree: Callable[[float], float] = float,
    ) -> None:
        self._method = method
        self._draft = draft
        self._costs = costs or CostModel()
        self._tracker = RequestTracker() if tracker is None else tracker
        self._clock = clock
        self._agree = agree
        self._cores = own_threads if draft is not None and draft.on_kernels else nullcontext
        self._drafting: dict[int, _Drafting] = {}
        self._warm: set[tuple[str, int]] = set()  # sizes of forwards that ran before
        self._running: dict[int, int] = {}  # by key, ids that the target reads in the step under way
        self._num_rows = 0  # of the step before
        self._entered: set[int] = set()  # keys of the requests that are new in this step
        self._in_prompts = False  # whether rows were in the middle of their prompts in the step before
        self._step_began = 0.0
        self.record = StepRecord()

    @property
    def num_requests(self) -> int:
        """Requests remembered now."""
        return len(self._drafting)

    def forget(self) -> None:
        """Forget all requests, as if none had been seen."""
        self._tracker.clear()
        for key in self._drafting:
            if self._draft is not None:
                self._draft.release(key)
        self._drafting.clear()
        self._running = {}

    def step(self, rows: Sequence[Row]) -> list[list[int]]:
        """What to propose for each row, at most its ``room`` target ids; nothing for rows that do not emit."""
        now = self._clock()
        requests = self._recognise(rows)
        self._observe_places(requests)
        self._observe_target(now, rows, requests)
        self._observe_tokens(rows, requests)
        proposals = self._propose(now, rows, requests)
        for request in self._tracker.forget_finished():
            key = request.key
            self._costs.observe_output(len(request.tokens) - self._drafting.pop(key).num_first_ids + 1)
            if self._draft is not None:
                self._draft.release(key)
        self._in_prompts = not all(row.emits for row in rows)
        self._step_began = self._clock()
        return proposals

    def _recognise(self, rows: Sequence[Row]) -> list[TrackedRequest | None]:
        """The request of each row; new ones get a proposer when they first emit."""
        requests = self._tracker.match([row.ids for row in rows])
        self._entered = set()
        for i, row in enumerate(rows):
            if requests[i] is None and row.emits:
                requests[i] = request = self._tracker.add(i, row.ids)
                self._entered.add(request.key)
                prompt = Prompt(tuple(int(token) for token in row.ids))
                self._drafting[request.key] = _Drafting(self._method.start(prompt), len(row.ids))
        return requests

    def _observe_places(self, requests: Sequence[TrackedRequest | None]) -> None:
        """Tell auto how many rows ended while others went on, and how many came in."""
        keys = {request.key for request in requests if request is not None}
        num_left = len(self._running.keys() - keys)
        if num_left < len(self._running):
            self._costs.observe_places(num_left, len(requests) - (self._num_rows - num_left))
        self._num_rows = len(requests)

    def _observe_target(
        self, now: float, rows: Sequence[Row], requests: Sequence[TrackedRequest | None]
    ) -> None:
        """Tell auto what the target's step took, if it was of the requests of the step before: alone, or beside whole
        prompts of new ones. A prompt that the host had cached makes its tokens look cheap; nobody says so here."""
        keys = {request.key for request in requests if request is not None}
        if len(keys) < len(rows) or not all(row.emits for row in rows) or not keys & self._running.keys():
            return
        seconds = self._agree(now - self._step_began)
        if seconds > LONGEST_STEP:
            return
        num_tokens = sum(self._running.values())
        new = keys - self._running.keys()
        if not new and keys == self._running.keys() and self._is_warm("target", num_tokens):
            self.record.target_step(seconds)
            self._costs.observe_target(num_tokens, seconds)
        elif new and new <= self._entered and not self._in_prompts:
            prompts = (len(row.ids) for row, r in zip(rows, requests, strict=True) if r and r.key in new)
            self._costs.observe_prompt(num_tokens + sum(prompts), seconds)

    def _observe_tokens(self, rows: Sequence[Row], requests: Sequence[TrackedRequest | None]) -> None:
        for row, request in zip(rows, requests, strict=True):
            if request is None or not row.emits:
                continue
            drafting = self._drafting[request.key]
            new = request.tokens.extend(row.ids).tolist()
            if new:
                self.record.verified(drafting.last, new)
                drafting.proposer.observe(new)
            drafting.last = EMPTY

    def _propose(
        self, now: float, rows: Sequence[Row], requests: Sequence[TrackedRequest | None]
    ) -> list[list[int]]:
        asking = {
            request.key: row.room
            for row, request in zip(rows, requests, strict=True)
            if request is not None and row.emits
        }
        self._costs.num_rows = len(asking)
        forwards, prefill = self._draft_work()
        generators: dict[Hashable, ProposalGenerator] = {
            key: self._drafting[key].proposer.propose(room) for key, room in asking.items()
        }
        with self._cores():
            proposals = drive(generators, self._draft)
        self._observe_draft(rows_drafted(proposals.values()), now, forwards, prefill)
        for key in asking:
            drafting = self._drafting[key]
            drafting.last = proposals[key]
            self.record.decided(getattr(drafting.proposer, "decision", ""))
        self._running = {key: 1 + len(proposals[key].token_ids) for key in asking}
        return [
            list(proposals[request.key].token_ids) if request is not None and request.key in asking else []
            for request in requests
        ]

    def _draft_work(self) -> tuple[int, float]:
        """Forwards of the draft so far, and seconds that it read long contexts."""
        return (self._draft.num_forwards, self._draft.prefill_time) if self._draft is not None else (0, 0.0)

    def _observe_draft(
        self, num_rows: int, began: float, forwards_before: int, prefill_before: float
    ) -> None:
        """What a draft forward costs, with the work around it (recognition, retokenization)."""
        forwards, prefill = self._draft_work()
        if forwards > forwards_before:
            reading = self._agree(prefill - prefill_before)
            self._costs.reading_time += reading
            seconds = self._agree(self._clock() - began) - reading
            self.record.draft_step(seconds, forwards - forwards_before)
            if self._is_warm("draft", num_rows):
                self._costs.observe_draft(num_rows, seconds / (forwards - forwards_before))

    def _is_warm(self, model: str, size: int) -> bool:
        """Whether a forward of that size ran before: the first one pays for what is set up once a size."""
        warm = (model, size) in self._warm
        self._warm.add((model, size))
        return warm
