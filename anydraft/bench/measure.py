"""Timed runs of several configurations on the same prompts, in one process, in alternating order."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.serve_all import serve_all
from anydraft.engine import Engine, RequestStats
from anydraft.rules.params import SamplingParams

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Timed:
    """One group of prompts (a batch) through one configuration."""

    seconds: float
    token_ids: tuple[tuple[int, ...], ...]
    stats: RequestStats

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


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
        return Timed(seconds, tuple(r.token_ids for r in results), total)


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

    def same_outputs(self, baseline: Series) -> tuple[int, int]:
        """(outputs equal to the baseline's, outputs)."""
        pairs = [
            (a, b)
            for mine, theirs in zip(self.runs, baseline.runs, strict=True)
            for a, b in zip(mine.token_ids, theirs.token_ids, strict=True)
        ]
        return sum(a == b for a, b in pairs), len(pairs)


def measure(
    configurations: Sequence[Configuration],
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    batch_size: int,
    progress: Progress = lambda line: None,
) -> list[Series]:
    """Run every configuration on every group of ``batch_size`` prompts; the order rotates from group to group,
    so that a machine that warms up or gets busy favours none. A short run of each before that is not counted."""
    groups = [list(prompts[i : i + batch_size]) for i in range(0, len(prompts), batch_size)]
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
