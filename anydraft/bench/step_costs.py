"""What a step costs here: the engine's own steps, timed with proposals of chosen lengths.

A step's time depends on how many tokens the draft draws and the target reads, not on which. So the engine runs on a
known text with proposals of every length in turn, of which the first token is right and the others wrong, as in
steps of real drafts; the draft draws as many tokens as it would, and the target alone steps in between.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anydraft.bench.replay import Known, ReplayedStep
from anydraft.engine.engine import EncodedPrompt, Engine
from anydraft.methods.base import Method, Prompt, Proposal, ProposalGenerator, Proposer
from anydraft.rules.params import SamplingParams

LENGTHS = (0, 1, 2, 4, 6, 8)
"""Proposals that are timed, 0: none; times between them are taken from a line."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds, medians.

    Attributes:
        alone: a step of the target alone.
        target: length of the proposal -> a step that verifies it, without the draft: forward, rule, emission,
            retokenization of what was emitted.
        draft: tokens drawn -> what drafting took.
        draft_reading: what a prompt costs the draft, a token of it (of the target's).
    """

    alone: float
    target: dict[int, float]
    draft: dict[int, float]
    draft_reading: float = 0.0

    @property
    def draft_step(self) -> float:
        """Seconds that one more drafted token takes, of the longest draft; 0.0 without a draft."""
        longest = max(self.draft)
        return self.draft[longest] / longest if longest else 0.0

    def speedup(self, steps: Sequence[ReplayedStep], num_prompt_tokens: int) -> float:
        """Predicted tokens a second of ``steps``, after prompts of so many tokens in all, over those of the
        target alone; its own reading of the prompts aside, which is the same for both."""
        seconds = num_prompt_tokens * self.draft_reading + sum(
            _between(self.target, step.num_proposed) + _between(self.draft, step.num_drawn) for step in steps
        )
        return self.alone * sum(step.num_emitted for step in steps) / seconds if seconds else 1.0


@dataclass
class _Samples:
    alone: list[float] = field(default_factory=list)
    target: dict[int, list[float]] = field(default_factory=dict)
    draft: dict[int, list[float]] = field(default_factory=dict)
    first_draft: list[tuple[float, int]] = field(default_factory=list)
    """With the tokens of the prompt."""


def measure_costs(
    alone: Engine, drafting: Engine, method: Method, texts: Sequence[Known], lengths: Sequence[int] = LENGTHS
) -> StepCosts:
    """Time steps of ``method`` in ``drafting`` and of the target in ``alone``, in turn, one round a text.

    Args:
        alone, drafting: engines over the same target with keys and values of their own, both without requests.
        method: one that draws at least ``max(lengths)`` tokens a step, or none at all.
        lengths: proposals to time; they hold 0.
    """
    samples = _Samples()
    for number, text in enumerate(texts):
        shift = number % len(lengths)
        _time_round(alone, drafting, method, text, [*lengths[shift:], *lengths[:shift]], samples)
    target = {n: statistics.median(times) for n, times in sorted(samples.target.items())}
    draft = {n: statistics.median(times) for n, times in sorted(samples.draft.items())}
    draft = _rising({**draft, 0: 0.0})
    longest = max(draft.values())
    reading = statistics.median(max(first - longest, 0.0) / length for first, length in samples.first_draft)
    return StepCosts(statistics.median(samples.alone), _rising(target), draft, reading)


def _time_round(
    alone: Engine, drafting: Engine, method: Method, text: Known, lengths: Sequence[int], samples: _Samples
) -> None:
    # In a first step the prompt is read; it counts for nothing else.
    schedule = [max(lengths), *lengths]
    room = 2 * len(schedule) + max(lengths) + 2  # a step emits two tokens
    params = SamplingParams(temperature=0.0, max_tokens=room, ignore_eos=True)
    prompt = EncodedPrompt(text.prompt_ids, text.draft_ids)
    paced = PacedMethod(method, schedule, text.output_ids)
    requests = {
        alone: alone.add_encoded(prompt, params, None),
        drafting: drafting.add_encoded(prompt, params, paced),
    }
    try:
        steps = {engine: _steps(engine) for engine in requests}
        for number, length in enumerate(schedule):
            plain, step = next(steps[alone]), next(steps[drafting])
            if number == 0:
                samples.first_draft.append((step.draft_seconds, len(text.prompt_ids)))
            else:
                samples.alone.append(plain.seconds)
                samples.target.setdefault(length, []).append(step.seconds - step.draft_seconds)
                samples.draft.setdefault(step.num_drawn, []).append(step.draft_seconds)
    finally:
        for engine, request_id in requests.items():
            engine.core.abort(request_id)


@dataclass(frozen=True)
class _TimedStep:
    seconds: float
    draft_seconds: float
    num_drawn: int


def _steps(engine: Engine) -> Iterator[_TimedStep]:
    """The steps of the engine's one request."""
    draft_seconds, num_drawn = 0.0, 0
    while True:
        started = time.perf_counter()
        (delta,) = engine.core.step()
        seconds = time.perf_counter() - started
        stats = delta.stats
        yield _TimedStep(seconds, stats.draft_time - draft_seconds, stats.num_draft_model_tokens - num_drawn)
        draft_seconds, num_drawn = stats.draft_time, stats.num_draft_model_tokens


class PacedMethod:
    """Draws as many tokens as a schedule says with another method, and proposes as many, the first one right.

    Args:
        schedule: tokens to draw and to propose, step by step.
        known: target ids that the target will emit, as far as they are known.
    """

    def __init__(self, method: Method, schedule: Sequence[int], known: Sequence[int]) -> None:
        self._method = method
        self._schedule = schedule
        self._known = known
        self.name = f"paced({method.name})"

    def start(self, prompt: Prompt) -> _PacedProposer:
        return _PacedProposer(self._method.start(prompt), self._schedule, self._known)


class _PacedProposer:
    def __init__(self, inner: Proposer, schedule: Sequence[int], known: Sequence[int]) -> None:
        self._inner = inner
        self._schedule = iter(schedule)
        self._known = known
        self._done = 0

    def propose(self, max_target_tokens: int, min_survival: float = 0.0) -> ProposalGenerator:
        count = min(next(self._schedule, 0), max_target_tokens)
        drafted = yield from self._inner.propose(count, min_survival)
        coming = list(self._known[self._done : self._done + count])
        coming += [0] * (count - len(coming))
        wrong = [0 if right else 1 for right in coming[1:]]
        return Proposal(tuple(coming[:1] + wrong), num_draft_tokens=drafted.num_draft_tokens)

    def observe(self, token_ids: Sequence[int]) -> None:
        self._done += len(token_ids)
        self._inner.observe(token_ids)


def _rising(times: dict[int, float]) -> dict[int, float]:
    """More tokens never take less time; where they seem to, that is noise."""
    highest, risen = 0.0, {}
    for count in sorted(times):
        highest = risen[count] = max(highest, times[count])
    return risen


def _between(times: dict[int, float], at: int) -> float:
    """The time at ``at`` on the line between its neighbours; beyond the last two on theirs."""
    counts = list(times)
    upper = next((i for i, count in enumerate(counts) if count >= at), len(counts) - 1)
    if counts[upper] == at:
        return times[at]
    a, b = counts[max(upper - 1, 0)], counts[max(upper, 1)]
    return times[a] + (times[b] - times[a]) * (at - a) / (b - a)
