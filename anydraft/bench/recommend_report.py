"""What ``anydraft recommend`` found: methods of drafts by predicted speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anydraft.bench.bench import machine_card
from anydraft.bench.markdown import table

MIN_SPEEDUP = 1.05
"""Predicted speed-up from which a draft pays: less is within what the prediction itself is off."""

FEW_TOKENS = 64
"""A probe of fewer tokens says little of acceptance."""


@dataclass(frozen=True)
class Candidate:
    """A draft with a method at its best number of draft tokens a step.

    Attributes:
        draft: as it was named; None: copies, without a model.
        overlap: share of the probe's target tokens that one token of the draft means; 1.0 for copies.
        acceptance: by position of the proposal, share of the steps that accepted it.
        draft_step: seconds of one drafted token; 0.0 for copies.
        speedup: predicted tokens a second over the target's alone, its reading of the prompt aside.
        speedups: the same by number of draft tokens a step.
        auto_method: what method "auto" drafts with beside this draft; it goes by the clock, and is not replayed.
    """

    draft: str | None
    method: str
    overlap: float
    num_speculative_tokens: int
    acceptance_length: float
    acceptance: tuple[float, ...]
    draft_step: float
    speedup: float
    speedups: dict[int, float]
    auto_method: str


@dataclass(frozen=True)
class Refused:
    """A draft that cannot work, and why."""

    draft: str
    reason: str


@dataclass(frozen=True)
class RecommendReport:
    """Everything that was tried.

    Attributes:
        target_step: seconds of a step of the target alone.
        verify_steps: length of a proposal -> seconds of a target step that verifies it.
        num_tokens: tokens of the probe, all prompts together.
    """

    target: str
    num_prompts: int
    num_tokens: int
    target_step: float
    verify_steps: dict[int, float]
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...] = ()

    @property
    def ranking(self) -> list[Candidate]:
        """The best method of each draft, the best draft first."""
        best: dict[str | None, Candidate] = {}
        for candidate in sorted(self.candidates, key=lambda c: -c.speedup):
            best.setdefault(candidate.draft, candidate)
        return list(best.values())

    @property
    def recommended(self) -> Candidate | None:
        """None: none of them pays."""
        first = self.ranking[:1]
        return first[0] if first and first[0].speedup >= MIN_SPEEDUP else None

    @property
    def exit_code(self) -> int:
        return 0 if self.recommended else 1

    def to_dict(self) -> dict[str, Any]:
        best = self.recommended
        return {
            "target": self.target,
            "machine": machine_card(),
            "num_prompts": self.num_prompts,
            "num_tokens": self.num_tokens,
            "target_step": self.target_step,
            "verify_steps": self.verify_steps,
            "recommended": asdict(best) if best else None,
            "command": self.command if best else None,
            "ranking": [asdict(c) for c in self.ranking],
            "candidates": [asdict(c) for c in self.candidates],
            "refused": [asdict(r) for r in self.refused],
            "exit_code": self.exit_code,
        }

    @property
    def command(self) -> str:
        """The command that runs what is recommended."""
        best = self.ranking[0]
        draft = f" --draft {best.draft}" if best.draft else ""
        count = f"--num-speculative-tokens {best.num_speculative_tokens}"
        return f"anydraft run {self.target}{draft} --method {best.method} {count} PROMPT"

    def to_markdown(self) -> str:
        lines = [f"# Drafts for {self.target}", "", self._verdict(), "", _table(self.ranking), ""]
        wide = ", ".join(f"{1e3 * s:.0f} with {n}" for n, s in self.verify_steps.items() if n)
        prompts = "1 prompt" if self.num_prompts == 1 else f"{self.num_prompts} prompts"
        alone = f"The target alone takes {1e3 * self.target_step:.0f} ms a token"
        lines += [
            f"{alone}; a step that verifies proposed tokens, ms: {wide}.",
            f"Greedy, batch 1; {self.num_tokens} tokens after {prompts}. {machine_card()}.",
        ]
        lines += [f"\n{refused.draft} was refused: {refused.reason}" for refused in self.refused]
        if self.num_tokens < FEW_TOKENS:
            lines.append(
                f"\n{self.num_tokens} tokens are few to judge acceptance by; give more --prompts or --max-tokens."
            )
        return "\n".join(lines)

    def _verdict(self) -> str:
        best = self.recommended
        if best is None:
            return (
                "**None of these pays.** The target alone is predicted to be the fastest, or as fast as makes no "
                f"difference (less than {MIN_SPEEDUP:g}x)."
            )
        what = best.draft or "copies from the text so far (no draft model)"
        return (
            f"**{what}**: {best.speedup:.2f}x predicted, with method `{best.method}` and "
            f"{best.num_speculative_tokens} draft tokens a step:\n\n    {self.command}\n\n{_of_auto(best)}"
        )


def _of_auto(best: Candidate) -> str:
    """What "auto" does in its place."""
    if best.draft is None:
        does = "without a draft it copies as well, and stops where that does not pay"
    else:
        drafts = "as well" if best.auto_method == best.method else f"and not with `{best.method}`"
        drafts = f"drafts with `{best.auto_method}` {drafts}"
        does = f"it {drafts}, copies where the text repeats, and stops where neither pays"
    return f"`--method auto`, the default, is not predicted: {does}."


def _table(ranking: Sequence[Candidate]) -> str:
    header = [
        "draft",
        "method",
        "tokens",
        "overlap",
        "acceptance length",
        "draft step, ms",
        "predicted speed-up",
    ]
    rows = [
        (
            c.draft or "-",
            c.method,
            c.num_speculative_tokens,
            f"{100 * c.overlap:.0f} %" if c.draft else "-",
            f"{c.acceptance_length:.2f}",
            f"{1e3 * c.draft_step:.1f}" if c.draft else "-",
            f"{c.speedup:.2f}x",
        )
        for c in ranking
    ]
    return table(header, rows, "llrrrrr")
