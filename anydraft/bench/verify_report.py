"""What :func:`anydraft.bench.verify.verify` finds, as data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from anydraft.bench.frequencies import TestResult

Verdict = Literal["tie", "mismatch"]


@dataclass(frozen=True)
class Difference:
    """The first position at which an output is not the target's own.

    Attributes:
        prompt_id: of the prompt.
        position: output position, from 0.
        own_id, drafted_id: the token of the target alone and the one with a draft; None where that output
            had ended.
        own_text, drafted_text: their texts.
        gap: how far apart the two tokens' scores are in the reference (logits; coupled: logits over the
            temperature, with the position's noise); None where one output had ended.
        behind: how far the worse of the two is behind the reference's best token.
        top_two: whether they are the reference's two best.
        noise: the largest difference of any logit between the target as it ran and the reference.
        bound: up to which ``behind`` is numerical noise.
        reference: dtype of the logits that judge: "float32", or the target's own where there is no copy.
        verdict: "tie" or "mismatch".
    """

    prompt_id: str
    position: int
    own_id: int | None
    drafted_id: int | None
    own_text: str
    drafted_text: str
    gap: float | None
    behind: float
    top_two: bool
    noise: float
    bound: float
    reference: str
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Outputs of one method beside the target's own, greedy or with the same seeds.

    ``num_draft_tokens`` were proposed and ``num_accepted_tokens`` of them accepted.
    """

    mode: Literal["greedy", "coupled"]
    method: str
    batch_size: int
    num_outputs: int
    num_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    differences: tuple[Difference, ...]

    @property
    def num_ties(self) -> int:
        return sum(d.verdict == "tie" for d in self.differences)

    @property
    def num_mismatches(self) -> int:
        return len(self.differences) - self.num_ties

    @property
    def num_identical(self) -> int:
        return self.num_outputs - len(self.differences)

    @property
    def largest_gap(self) -> float | None:
        """Of the ties."""
        return max((d.gap or 0.0 for d in self.differences if d.verdict == "tie"), default=None)


@dataclass(frozen=True)
class NamedTest:
    """One test: which, of which draws ("context 2, first token"), and its result."""

    name: str
    of: str
    num_draws: int
    result: TestResult


@dataclass(frozen=True)
class SamplingCheck:
    """The tests of one method's sampled tokens. ``flagged`` names those that Holm's procedure rejects."""

    method: str
    verification: str
    num_contexts: int
    num_draws: int
    num_draft_tokens: int
    num_accepted_tokens: int
    tests: tuple[NamedTest, ...]
    flagged: tuple[NamedTest, ...] = ()

    @property
    def smallest(self) -> NamedTest | None:
        return min(self.tests, key=lambda t: t.result.p_value, default=None)


@dataclass(frozen=True)
class VerifyReport:
    """Everything; ``false_alarm`` is the probability that a lossless engine has any test flagged."""

    target: str
    draft: str
    dtype: str
    runner: str
    temperature: float
    false_alarm: float
    comparisons: tuple[Comparison, ...]
    sampling: tuple[SamplingCheck, ...]

    @property
    def lossless(self) -> bool:
        return not any(c.num_mismatches for c in self.comparisons) and not any(
            s.flagged for s in self.sampling
        )

    @property
    def exit_code(self) -> int:
        return 0 if self.lossless else 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        data = dataclasses.asdict(self)
        for entry, comparison in zip(data["comparisons"], self.comparisons, strict=True):
            entry["num_identical"] = comparison.num_identical
            entry["num_ties"] = comparison.num_ties
            entry["num_mismatches"] = comparison.num_mismatches
            entry["largest_gap"] = comparison.largest_gap
        for entry, check in zip(data["sampling"], self.sampling, strict=True):
            smallest = check.smallest
            entry["smallest_p_value"] = None if smallest is None else smallest.result.p_value
        return {"lossless": self.lossless, "exit_code": self.exit_code, **_finite(data)}


def _finite(value: Any) -> Any:
    """JSON has no infinity: the statistic of a token that cannot be drawn becomes null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
