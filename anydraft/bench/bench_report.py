"""What ``anydraft bench`` found: as data for JSON, and as Markdown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anydraft.bench.markdown import code, table
from anydraft.bench.measure import Series, median_and_interval, per_position
from anydraft.bench.same_output import OutputJudge
from anydraft.bench.verify_report import Difference
from anydraft.rules.params import SamplingParams


@dataclass(frozen=True)
class BenchOptions:
    """What to measure; ``methods`` are tried with every draft, "lookup" once. Of each of ``batch_sizes`` times
    ``queue`` prompts that are given at once, as many run as the batch size says."""

    target: str
    drafts: tuple[str, ...]
    methods: tuple[str, ...] = ("auto",)
    batch_sizes: tuple[int, ...] = (1,)
    queue: int = 1
    peers: tuple[str, ...] = ()
    num_speculative_tokens: int | None = None
    dtype: str | None = None
    device: str | None = None
    draft_quantization: str = "auto"


@dataclass
class BatchReport:
    """All series at one batch size; the first is the baseline.

    Attributes:
        prompts: ids, in the order in which they were measured.
        differences: of each configuration's outputs that are not the baseline's; None where they were not judged.
    """

    batch_size: int
    prompts: tuple[str, ...]
    series: list[Series]
    differences: dict[str, list[Difference]] | None = None
    queue: int = 1

    def judge(self, judge: OutputJudge) -> None:
        """Fill :attr:`differences`; takes a forward or two for each output that differs."""
        baseline, *others = self.series
        self.differences = {series.name: judge.differences(series, baseline) for series in others}

    def rows(self) -> list[dict[str, Any]]:
        """One a configuration, for JSON and tables."""
        return [self._row(series) for series in self.series]

    def _row(self, series: Series) -> dict[str, Any]:
        baseline, stats = self.series[0], series.stats
        ratios, decode_ratios = series.ratios(baseline), series.decode_ratios(baseline)
        median, low, high = median_and_interval(ratios)
        same, outputs = series.same_outputs(baseline)
        found = (self.differences or {}).get(series.name, [])
        return {
            "configuration": series.name,
            "tokens_per_second": series.tokens_per_second,
            "speedup_median": median,
            "speedup_interval": [low, high],
            "speedup_least": min(ratios),
            "decode_speedup_median": statistics.median(decode_ratios),
            "acceptance_length": stats.acceptance_length,
            "acceptance_rate": stats.acceptance_rate,
            "per_position_acceptance": per_position(stats),
            "drafts": stats.num_drafts,
            "draft_tokens": stats.num_draft_tokens,
            "accepted_tokens": stats.num_accepted_tokens,
            "draft_time_share": _draft_time_share(series),
            "same_outputs": same,
            "outputs": outputs,
            "ties": None if self.differences is None else sum(d.verdict == "tie" for d in found),
            "differences": [dataclasses.asdict(d) for d in found],
            "groups": self._groups(series, ratios, decode_ratios),
        }

    def _groups(
        self, series: Series, ratios: Sequence[float], decode_ratios: Sequence[float]
    ) -> list[dict[str, Any]]:
        """What each group of prompts (one prompt at batch 1) took."""
        size = self.batch_size * self.queue
        return [
            {
                "prompts": list(self.prompts[n * size : (n + 1) * size]),
                "num_prompt_tokens": run.num_prompt_tokens,
                "num_tokens": run.num_tokens,
                "seconds": run.seconds,
                "decode_seconds": run.decode_seconds,
                "speedup": ratio,
                "decode_speedup": decode_ratio,
                "predicted_decode_speedup": run.predicted,
                "acceptance_length": run.stats.acceptance_length,
            }
            for n, (run, ratio, decode_ratio) in enumerate(
                zip(series.runs, ratios, decode_ratios, strict=True)
            )
        ]


@dataclass(frozen=True)
class BenchReport:
    """Everything that was measured; ``machine`` is the machine in a line."""

    options: BenchOptions
    params: SamplingParams
    prompts: tuple[str, ...]
    batches: list[BatchReport]
    peak_memory_bytes: int
    machine: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "target": self.options.target,
            "drafts": list(self.options.drafts),
            "machine": self.machine,
            "max_tokens": self.params.max_tokens,
            "temperature": self.params.temperature,
            "prompts": list(self.prompts),
            "peak_memory_bytes": self.peak_memory_bytes,
            "queue": self.options.queue,
            "batches": [{"batch_size": b.batch_size, "rows": b.rows()} for b in self.batches],
        }

    def to_markdown(self) -> str:
        """For people."""
        title = f"{self.options.target}: {len(self.prompts)} prompts, {self.params.max_tokens} tokens"
        parts = [
            f"# {title}, temperature {self.params.temperature:g}",
            f"{self.machine}; peak memory {self.peak_memory_bytes / 1e9:.2f} GB",
        ]
        for batch in self.batches:
            rows = batch.rows()
            queued = f", {batch.queue} prompts a row in a queue" if batch.queue > 1 else ""
            parts += [f"## Batch {batch.batch_size}{queued}", _table(rows), *_how_judged(rows)]
        return "\n\n".join(parts)


def _draft_time_share(series: Series) -> float | None:
    """0 to 1; None where something drafts and does not say for how long (peers)."""
    stats = series.stats
    if stats.num_accepted_tokens and not stats.draft_time:
        return None
    return stats.draft_time / sum(run.seconds for run in series.runs)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = [
        "configuration",
        "tok/s",
        "speed-up, median [95 %]",
        "least",
        "decode only",
        "acceptance length",
        "rate",
        "drafting",
        "accepted per position",
        "same output",
    ]
    cells = []
    for row in rows:
        low, high = row["speedup_interval"]
        cells.append(
            (
                row["configuration"],
                f"{row['tokens_per_second']:.2f}",
                f"{row['speedup_median']:.2f} [{low:.2f}, {high:.2f}]",
                f"{row['speedup_least']:.2f}",
                f"{row['decode_speedup_median']:.2f}",
                f"{row['acceptance_length']:.2f}",
                f"{100 * row['acceptance_rate']:.0f} %" if row["draft_tokens"] else "-",
                "-" if row["draft_time_share"] is None else f"{100 * row['draft_time_share']:.0f} %",
                " ".join(f"{share:.2f}" for share in row["per_position_acceptance"][:5]) or "-",
                _same(row),
            )
        )
    return table(header, cells, "lrrrrrrrlr")


def _same(row: dict[str, Any]) -> str:
    """Such as "5 of 6 (1 tie)"; what is no tie is named too."""
    counts = f"{row['same_outputs']} of {row['outputs']}"
    differing, ties = row["outputs"] - row["same_outputs"], row["ties"]
    if not differing or ties is None:
        return counts
    parts = [f"{ties} tie{'s' if ties > 1 else ''}"] if ties else []
    parts += [f"{differing - ties} not a tie"] if differing > ties else []
    return f"{counts} ({', '.join(parts)})"


def _how_judged(rows: Sequence[dict[str, Any]]) -> list[str]:
    """By what the differing outputs were judged."""
    found = [d for row in rows for d in row["differences"]]
    ties = [d for d in found if d["verdict"] == "tie"]
    lines = []
    if ties:
        behind, noise = max(d["behind"] for d in ties), max(d["noise"] for d in ties)
        lines.append(
            f"Ties are judged by the target's own {ties[0]['reference']} logits where the outputs part: there the "
            f"worse of the two tokens is at most {behind:.3g} behind the best, and two ways to compute these logits "
            f"differ by up to {noise:.3g}."
        )
    lines += [
        f"- not a tie: {d['prompt_id']}, token {d['position'] + 1}: {code(repr(d['own_text']))} alone, "
        f"{code(repr(d['drafted_text']))} here, {d['behind']:.3g} behind (allowed {d['bound']:.3g})"
        for d in found
        if d["verdict"] != "tie"
    ]
    return ["\n".join(dict.fromkeys(lines))] if lines else []
