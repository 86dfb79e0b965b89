"""The step loop: propose, verify, emit, for all running requests at once.

Rows of the target's KV cache are the running requests in order. Between steps a row holds every token
of its request but the last; a step feeds that token and the proposal in one forward, so the logits at
index i are the target's distribution after i accepted tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import nullcontext

import torch

from anydraft.engine.admission import Admission
from anydraft.engine.outputs import Delta
from anydraft.engine.request import FinishReason, Request
from anydraft.engine.sampler import Sampler
from anydraft.errors import AnyDraftError
from anydraft.kernels import own_threads
from anydraft.methods.auto import AutoProposer
from anydraft.methods.base import EMPTY, DraftBackend, Proposal, ProposalGenerator, drive, rows_drafted
from anydraft.methods.costs import CostModel
from anydraft.models.select import SlotRunner
from anydraft.rules.verify import Verdict


class EngineCore:
    """Continuous batching over one target, with or without a draft.

    Args:
        target: the runner whose rows the requests own.
        draft: answers the methods' asks; None when no method needs draft rows.
        sampler: turns logits and a proposal into what is emitted.
        max_num_seqs: requests that run at once; the others wait in order.
        costs: is told what each step took.
    """

    def __init__(
        self,
        target: SlotRunner,
        draft: DraftBackend | None,
        sampler: Sampler,
        max_num_seqs: int,
        costs: CostModel | None = None,
    ) -> None:
        self._target = target
        self._draft = draft
        self._sampler = sampler
        self.max_num_seqs = max_num_seqs
        self.admission = Admission(target)
        self.costs = costs or CostModel()
        on_kernels = target.on_kernels and (draft is None or getattr(draft, "on_kernels", False))
        self._cores = own_threads if on_kernels else nullcontext
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._num_left = 0  # requests that ended since the step before began, while others went on

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def abort(self, request_id: str) -> Delta | None:
        """End a request now; its row is free at once. None when there is no such request."""
        for request in [*self._waiting, *self._running]:
            if request.id == request_id:
                request.finish_reason = FinishReason.ABORT
                if request in self._waiting:
                    self._waiting.remove(request)
                self._retire()
                return request.delta(0)
        return None

    def step(self) -> list[Delta]:
        """One target forward for every running request; what each of them gained."""
        with self._cores():
            return self._step()

    def _step(self) -> list[Delta]:
        staying = len(self._running)
        self._admit()
        if not self._running:
            return []
        self.costs.observe_places(self._num_left, len(self._running) - staying)
        self._num_left = 0
        proposals = self._propose()
        logits = self._verify_forward(proposals)
        deltas = [
            self._verify(request, proposal, rows)
            for request, proposal, rows in zip(self._running, proposals, logits, strict=True)
        ]
        self._retire()
        return deltas

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.max_num_seqs:
            if not self.admission.fits(self._running, self._waiting[0]):
                return
            request = self._waiting.popleft()
            started = time.perf_counter()
            num_read = self.admission.enter(self._running, request)
            _finish(self._target.device)
            seconds = time.perf_counter() - started
            self.costs.observe_prompt(num_read, seconds)
            request.stats.prefill_time += seconds
            self._running.append(request)

    def _propose(self) -> list[Proposal]:
        self.costs.num_rows = len(self._running)
        forwards, prefill_time = self._draft_work()
        started = time.perf_counter()
        generators: dict[Hashable, ProposalGenerator] = {
            request.id: request.proposer.propose(request.room_for_proposal)
            for request in self._running
            if request.proposer is not None
        }
        proposals = drive(generators, self._draft)
        seconds = time.perf_counter() - started
        if all(isinstance(request.proposer, AutoProposer | None) for request in self._running):
            self._observe_draft(rows_drafted(proposals.values()), seconds, forwards, prefill_time)
        for request in self._running:
            request.stats.draft_time += seconds / len(self._running)
            request.stats.decision = getattr(request.proposer, "decision", "")
        return [proposals.get(request.id, EMPTY) for request in self._running]

    def _draft_work(self) -> tuple[int, float]:
        """Forwards of the draft so far, and seconds that it read long contexts; zeros if it does not tell."""
        return getattr(self._draft, "num_forwards", 0), getattr(self._draft, "prefill_time", 0.0)

    def _observe_draft(
        self, num_rows: int, seconds: float, forwards_before: int, prefill_time_before: float
    ) -> None:
        """What a draft forward of auto for so many rows costs, and its reading of prompts, which is paid once a
        request. Another method's forward says nothing of it."""
        forwards, prefill_time = self._draft_work()
        if forwards > forwards_before:
            reading = prefill_time - prefill_time_before
            self.costs.reading_time += reading
            self.costs.observe_draft(num_rows, (seconds - reading) / (forwards - forwards_before))

    def _verify_forward(self, proposals: Sequence[Proposal]) -> torch.Tensor:
        """Logits [rows, longest proposal + 1, V]."""
        started = time.perf_counter()
        ids = [
            [request.token_ids[-1], *proposal.token_ids]
            for request, proposal in zip(self._running, proposals, strict=True)
        ]
        logits = self._target.forward(0, ids, [len(request.token_ids) - 1 for request in self._running])
        _finish(logits.device)
        seconds = time.perf_counter() - started
        lengths = [len(row) for row in ids]
        # Transformers' forward pads its rows to the longest, the C forward pass does not.
        num_tokens = sum(lengths) if self._target.on_kernels else len(ids) * max(lengths)
        self.costs.observe_target(num_tokens, seconds)
        for request in self._running:
            request.stats.target_time += seconds / len(self._running)
        return logits

    def _verify(self, request: Request, proposal: Proposal, logits: torch.Tensor) -> Delta:
        """Verify one row; a request whose own parameters leave nothing to emit ends alone."""
        try:
            verdict = self._sampler.verify(request, proposal, logits[: len(proposal.token_ids) + 1])
        except AnyDraftError as error:
            request.finish_reason, request.error = FinishReason.ERROR, str(error)
            return request.delta(0)
        return self._emit(request, proposal, verdict)

    def _emit(self, request: Request, proposal: Proposal, verdict: Verdict) -> Delta:
        """Append the verdict's tokens up to the one that ends the request; the rest never happened."""
        accepted_source = "lookup" if proposal.source == "lookup" else "accepted"
        if not proposal.token_ids:
            last_source = "target"
        else:
            last_source = "bonus" if verdict.num_accepted == len(proposal.token_ids) else "corrected"
        emitted = 0
        for i, token_id in enumerate(verdict.token_ids):
            emitted += 1
            if request.emit(token_id, accepted_source if i < verdict.num_accepted else last_source):
                break
        del request.logprobs[request.num_output_tokens :]
        request.stats.record(
            len(proposal.token_ids),
            min(verdict.num_accepted, emitted),
            lookup=proposal.source == "lookup",
            draft_model_tokens=proposal.num_draft_tokens,
        )
        request.stats.alone_time += emitted * self.costs.plain_time_a_row()
        if request.proposer is not None and request.finish_reason is None:
            request.proposer.observe(verdict.token_ids[:emitted])
        return request.delta(emitted)

    def _retire(self) -> None:
        """Drop finished requests; the last row moves into each freed one."""
        num_before = len(self._running)
        row = 0
        while row < len(self._running):
            request = self._running[row]
            if request.finish_reason is None:
                row += 1
                continue
            if self._draft is not None:
                self._draft.release(request.id)
            if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self.costs.observe_output(request.num_output_tokens)
            last = self._running.pop()
            if last is not request:
                self._target.cache.move_row(len(self._running), row, len(last.token_ids) - 1)
                self._running[row] = last
        self._num_left = self._num_left + num_before - len(self._running) if self._running else 0


def _finish(device: torch.device) -> None:
    """Wait for what was given to a GPU: a clock read before says how long giving it took."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
