"""What a host's log says of drafting, in vLLM's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anydraft.methods.base import Proposal


@dataclass
class StepRecord:
    """Sums since the last line: tokens, and seconds by kind of work."""

    num_drafts: int = 0
    """Proposals that the target has checked."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    num_plain: int = 0
    """Requests' steps without a proposal."""
    num_copied: int = 0
    """Those of them that lookup made."""
    target_seconds: float = 0.0
    target_steps: int = 0
    draft_seconds: float = 0.0
    draft_forwards: int = 0
    decision: str = ""

    def verified(self, proposal: Proposal, emitted: Sequence[int]) -> None:
        """The target emitted ``emitted`` where ``proposal`` was proposed."""
        self.num_emitted_tokens += len(emitted)
        if not proposal.token_ids:
            self.num_plain += 1
            return
        self.num_drafts += 1
        self.num_copied += proposal.source == "lookup"
        self.num_draft_tokens += len(proposal.token_ids)
        equal = (a == b for a, b in zip(proposal.token_ids, emitted, strict=False))
        self.num_accepted_tokens += next(
            (i for i, same in enumerate(equal) if not same), _shorter(proposal, emitted)
        )

    def decided(self, decision: str) -> None:
        self.decision = decision or self.decision

    def target_step(self, seconds: float) -> None:
        self.target_seconds += seconds
        self.target_steps += 1

    def draft_step(self, seconds: float, forwards: int) -> None:
        self.draft_seconds += seconds
        self.draft_forwards += forwards

    def line(self) -> str:
        """One line; empty where nothing was emitted."""
        steps = self.num_drafts + self.num_plain
        if not steps:
            return ""
        parts = [f"Mean acceptance length: {self.num_emitted_tokens / steps:.2f}"]
        if self.num_draft_tokens:
            parts.append(
                f"Accepted: {self.num_accepted_tokens} tokens, Drafted: {self.num_draft_tokens} tokens, "
                f"Avg Draft acceptance rate: {100 * self.num_accepted_tokens / self.num_draft_tokens:.1f}%"
            )
        parts.append(f"Steps with drafts: {self.num_drafts} of {steps} ({self.num_copied} copied)")
        if self.target_steps:
            parts.append(f"Target step: {1e3 * self.target_seconds / self.target_steps:.1f} ms")
        if self.draft_forwards:
            parts.append(f"Draft forward: {1e3 * self.draft_seconds / self.draft_forwards:.1f} ms")
        if self.decision:
            parts.append(f"Decision: {self.decision}")
        return ", ".join(parts)


def _shorter(proposal: Proposal, emitted: Sequence[int]) -> int:
    return min(len(proposal.token_ids), len(emitted))


class IntervalLog:
    """Says when the next line of a log is due.

    Args:
        interval: seconds between two lines; 0: never.
        clock: seconds.
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._next = clock() + interval

    def due(self) -> bool:
        """Whether a line is due; then the next one is due an interval later."""
        now = self._clock()
        if not self._interval or now < self._next:
            return False
        self._next = now + self._interval
        return True
