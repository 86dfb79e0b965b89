"""What a request gives back: text, ids, why it ended, and what speculation did for it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass
class RequestStats:
    """What the steps of one request did. Times are seconds of the steps it took part in, shared among their rows.

    ``num_draft_tokens`` counts the target ids that were proposed, ``num_accepted_tokens`` those that the
    target took, ``accepted_per_position[i]`` how often the proposal's position i was accepted. ``decision`` is what
    "auto" decided last. ``alone_time`` is what the target alone would have needed for the same tokens, by its measured
    steps without a proposal; NaN while there were none.
    """

    method: str = "none"
    decision: str = ""
    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_draft_model_tokens: int = 0
    num_lookup_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    draft_time: float = 0.0
    target_time: float = 0.0
    prefill_time: float = 0.0
    alone_time: float = 0.0

    @property
    def predicted_speedup(self) -> float | None:
        """Time of the target alone for the same tokens over that of the steps; None where it was not measured."""
        spent = self.draft_time + self.target_time
        return self.alone_time / spent if spent and not math.isnan(self.alone_time) else None

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted a step: accepted + 1."""
        return 1.0 + self.num_accepted_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed, 0 when nothing was proposed."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def record(self, proposed: int, accepted: int, *, lookup: bool, draft_model_tokens: int) -> None:
        """Count one step that proposed and kept so many tokens."""
        self.num_steps += 1
        self.num_drafts += proposed > 0
        self.num_draft_tokens += proposed
        self.num_accepted_tokens += accepted
        self.num_draft_model_tokens += draft_model_tokens
        self.num_lookup_tokens += proposed if lookup else 0
        self.accepted_per_position.extend([0] * (proposed - len(self.accepted_per_position)))
        for i in range(accepted):
            self.accepted_per_position[i] += 1

    def add(self, other: RequestStats) -> None:
        """Add another request's counts and times to these."""
        for field_ in fields(self):
            value = getattr(self, field_.name)
            if isinstance(value, int | float):
                setattr(self, field_.name, value + getattr(other, field_.name))
        mine, theirs = self.accepted_per_position, other.accepted_per_position
        mine.extend([0] * (len(theirs) - len(mine)))
        for i, count in enumerate(theirs):
            mine[i] += count

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the fields and the two ratios."""
        return {
            **asdict(self),
            "alone_time": None if math.isnan(self.alone_time) else self.alone_time,
            "predicted_speedup": self.predicted_speedup,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
        }


@dataclass(frozen=True)
class Logprob:
    """Natural log of the target's unprocessed probability of one id, and its rank (1: most likely)."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True)
class GenerationResult:
    """A finished request.

    Attributes:
        text: what was generated, without control tokens and without the stop string that ended it.
        token_ids: target ids generated, the end token included when one ended it.
        finish_reason: "stop" (an end token or a stop string), "length", "abort" or "error".
        stop_reason: the stop string or stop token id that ended it, if one the caller named.
        error: why the request was refused, when ``finish_reason`` is "error".
        logprobs: per token, the asked number of most likely ids and the token itself.
        sources: per token, "accepted", "lookup" (copied and accepted), "corrected" or "bonus", "target" when
            nothing was proposed.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None = None
    error: str | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    sources: tuple[str, ...] = ()
    stats: RequestStats = field(default_factory=RequestStats)


@dataclass(frozen=True)
class Delta:
    """What one step added to one request. ``result`` is set on the last one.

    ``stats`` are the request's own, which its next step changes. ``logprobs`` are those of ``token_ids``, where the
    request asked for them.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    stats: RequestStats
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    result: GenerationResult | None = None
