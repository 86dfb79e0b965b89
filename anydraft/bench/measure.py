"""Timed runs of several configurations on the same prompts, in one process, in alternating order."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.serve_all import serve_all
from anydraft.engine import Engine, RequestStats
from anydraft.methods.costs import CostModel
from anydraft.rules.params import SamplingParams

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Timed:
    """One group of prompts (a batch) through one configuration.

    Attributes:
        seconds: all of it, the reading of the prompts included.
        token_ids: the outputs.
        stats: of all of them together; ``prefill_time`` is how long the target read prompts.
        num_prompt_tokens: of all prompts, in the target's ids.
        predicted: speed-up over the target alone (decoding) by the cost model and what was accepted; None where
            that is not known.
    """

    seconds: float
    token_ids: tuple[tuple[int, ...], ...]
    stats: RequestStats
    num_prompt_tokens: int = 0
    predicted: float | None = None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def decode_seconds(self) -> float:
        """Without the target's reading of the prompts, which is the same whatever drafts; a draft's own reading is
        part of the price of drafting."""
        return self.seconds - self.stats.prefill_time


class Configuration(Protocol):
    """Something that generates: AnyDraft with a method, or a peer."""

    @property
    def name(self) -> str: ...

    def run(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> Timed: ...


@dataclass(frozen=True)
class EngineConfiguration:
    """An engine of ours."""

    name: str
    engine: Engine

    def run(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> Timed:
        started = time.perf_counter()
        results = serve_all(self.engine, prompts, [params] * len(prompts))
        seconds = time.perf_counter() - started
        total = RequestStats()
        for result in results:
            total.add(result.stats)
        return Timed(
            seconds,
            tuple(r.token_ids for r in results),
            total,
            sum(len(r.prompt_token_ids) for r in results),
            predicted_speedup(
                self.engine.pair.costs, total, min(len(prompts), self.engine.core.max_num_seqs)
            ),
        )


def predicted_speedup(costs: CostModel, stats: RequestStats, num_rows: int) -> float | None:
    """What the target alone would have needed for the same tokens over what the steps cost by ``costs``: target
    forwards as wide as they were on average, and the draft's time. None where no plain step was measured."""
    tokens = stats.num_steps + stats.num_accepted_tokens
    alone = tokens * costs.plain_time_a_row()
    width = 1.0 + stats.num_draft_tokens / max(stats.num_steps, 1)
    steps = stats.num_steps / num_rows * costs.target_time(round(num_rows * width))
    spent = steps + stats.draft_time
    return alone / spent if spent and not math.isnan(alone) else None


@dataclass
class Series:
    """All timed groups of one configuration, in the order of the groups."""

    name: str
    runs: list[Timed] = field(default_factory=list)

    @property
    def stats(self) -> RequestStats:
        total = RequestStats()
        for run in self.runs:
            total.add(run.stats)
        return total

    @property
    def tokens_per_second(self) -> float:
        return sum(r.num_tokens for r in self.runs) / sum(r.seconds for r in self.runs)

    def ratios(self, baseline: Series) -> list[float]:
        """tok/s over the baseline's, group by group."""
        return [
            mine.tokens_per_second / theirs.tokens_per_second
            for mine, theirs in zip(self.runs, baseline.runs, strict=True)
        ]

    def decode_ratios(self, baseline: Series) -> list[float]:
        """The same without the target's reading of the prompts."""
        return [
            (mine.num_tokens / mine.decode_seconds) / (theirs.num_tokens / theirs.decode_seconds)
            for mine, theirs in zip(self.runs, baseline.runs, strict=True)
        ]

    @property
    def outputs(self) -> list[tuple[int, ...]]:
        """Of all prompts, in their order."""
        return [output for run in self.runs for output in run.token_ids]

    def same_outputs(self, baseline: Series) -> tuple[int, int]:
        """(outputs equal to the baseline's, outputs)."""
        pairs = list(zip(self.outputs, baseline.outputs, strict=True))
        return sum(a == b for a, b in pairs), len(pairs)


def measure(
    configurations: Sequence[Configuration],
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    group_size: int,
    progress: Progress = lambda line: None,
) -> list[Series]:
    """Run every configuration on every group of ``group_size`` prompts; the order rotates from group to group,
    so that a machine that warms up or gets busy favours none. A short run of each before that is not counted."""
    groups = [list(prompts[i : i + group_size]) for i in range(0, len(prompts), group_size)]
    warm_up = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    for configuration in configurations:
        configuration.run(groups[0], warm_up)
    series = [Series(c.name, [None] * len(groups)) for c in configurations]  # type: ignore[list-item]
    for number, group in enumerate(groups):
        shift = number % len(configurations)
        order = [*range(shift, len(configurations)), *range(shift)]
        for i in order:
            run = configurations[i].run(group, params)
            series[i].runs[number] = run
            progress(
                f"{number + 1}/{len(groups)} {configurations[i].name}: {run.tokens_per_second:.2f} tok/s, "
                f"acceptance length {run.stats.acceptance_length:.2f}"
            )
    return series


def median_and_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval (percentiles, seeded)."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(draws))
    return statistics.median(values), medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def per_position(stats: RequestStats, count: int = 8) -> list[float]:
    """Share of the drafts whose position i was accepted."""
    return [n / stats.num_drafts for n in stats.accepted_per_position[:count]] if stats.num_drafts else []
