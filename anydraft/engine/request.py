"""One request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from anydraft.engine.detokenizer import Detokenizer
from anydraft.engine.outputs import Delta, GenerationResult, Logprob, RequestStats
from anydraft.methods.base import Proposer
from anydraft.rules.noise import Noise
from anydraft.rules.params import SamplingParams


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass
class Request:
    """State of a running request.

    Invariant between steps: the target's KV row holds every token but the last of ``token_ids``.
    """

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    noise: Noise
    proposer: Proposer | None
    detokenizer: Detokenizer
    stop_ids: frozenset[int]
    """Ids that end the request (empty with ``ignore_eos``, but for the caller's own)."""
    max_tokens: int
    """Tokens it may generate: the caller's limit, cut to the target's context."""
    token_ids: list[int] = field(default_factory=list)
    """Prompt and output, target ids."""
    stats: RequestStats = field(default_factory=RequestStats)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def room_for_proposal(self) -> int:
        """Target ids that a step may propose: it emits one more than it accepts."""
        return max(self.max_tokens - self.num_output_tokens - 1, 0)

    def emit(self, token_id: int, source: str) -> bool:
        """Append one token; True when the request ends with it."""
        self.token_ids.append(token_id)
        self.sources.append(source)
        if token_id in self.stop_ids:
            self.finish_reason = FinishReason.STOP
            if token_id in (self.params.stop_token_ids or ()):
                self.stop_reason = token_id
            return True
        stop = self.detokenizer.push(token_id, check=self.num_output_tokens > self.params.min_tokens)
        if stop is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, stop
            return True
        if self.num_output_tokens >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH
            return True
        return False

    def delta(self, new_tokens: int) -> Delta:
        """What the last step added, with the whole result when the request is finished."""
        if self.finish_reason is not None:
            if self.stop_reason is None and (stop := self.detokenizer.finish()) is not None:
                self.finish_reason, self.stop_reason = FinishReason.STOP, stop
            text = self.detokenizer.take(final=True)
        else:
            text = self.detokenizer.take()
        old = self.num_output_tokens - new_tokens
        return Delta(
            request_id=self.id,
            text=text,
            token_ids=tuple(self.token_ids[len(self.token_ids) - new_tokens :]),
            sources=tuple(self.sources[old:]),
            stats=self.stats,
            logprobs=tuple(self.logprobs[old:]) if self.params.logprobs is not None else None,
            result=self.result() if self.finish_reason is not None else None,
        )

    def result(self) -> GenerationResult:
        assert self.finish_reason is not None
        return GenerationResult(
            request_id=self.id,
            prompt_token_ids=self.prompt_ids,
            text=self.detokenizer.text,
            token_ids=tuple(self.output_ids),
            finish_reason=self.finish_reason.value,
            stop_reason=self.stop_reason,
            error=self.error,
            logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
            sources=tuple(self.sources),
            stats=self.stats,
        )
