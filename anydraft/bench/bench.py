"""``anydraft bench``: methods x drafts x batch sizes on the same prompts, the target alone first."""

from __future__ import annotations

import platform
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anydraft._version import __version__
from anydraft.bench.markdown import table
from anydraft.bench.measure import (
    Configuration,
    EngineConfiguration,
    Progress,
    Series,
    measure,
    median_and_interval,
    per_position,
)
from anydraft.bench.peers import TransformersPeer
from anydraft.bench.prompts import BenchPrompt
from anydraft.engine import Engine
from anydraft.models.load import load_model
from anydraft.rules.params import SamplingParams

BASELINE = "AR"


@dataclass(frozen=True)
class BenchOptions:
    """What to measure; ``methods`` are tried with every draft, "lookup" once."""

    target: str
    drafts: tuple[str, ...]
    methods: tuple[str, ...] = ("auto",)
    batch_sizes: tuple[int, ...] = (1,)
    peers: tuple[str, ...] = ()
    num_speculative_tokens: int | None = None
    dtype: str | None = None
    device: str | None = None
    draft_quantization: str = "auto"


@dataclass(frozen=True)
class BatchReport:
    """All series at one batch size; the first is the baseline."""

    batch_size: int
    series: list[Series]

    def rows(self) -> list[dict[str, Any]]:
        baseline = self.series[0]
        rows = []
        for series in self.series:
            stats = series.stats
            median, low, high = median_and_interval(series.ratios(baseline))
            same, outputs = series.same_outputs(baseline)
            seconds = sum(run.seconds for run in series.runs)
            rows.append(
                {
                    "configuration": series.name,
                    "tokens_per_second": series.tokens_per_second,
                    "speedup_median": median,
                    "speedup_interval": [low, high],
                    "speedup_least": min(series.ratios(baseline)),
                    "acceptance_length": stats.acceptance_length,
                    "acceptance_rate": stats.acceptance_rate,
                    "per_position_acceptance": per_position(stats),
                    "drafts": stats.num_drafts,
                    "draft_tokens": stats.num_draft_tokens,
                    "accepted_tokens": stats.num_accepted_tokens,
                    "draft_time_share": stats.draft_time / seconds,
                    "same_outputs": same,
                    "outputs": outputs,
                }
            )
        return rows


@dataclass(frozen=True)
class BenchReport:
    options: BenchOptions
    params: SamplingParams
    prompts: tuple[str, ...]
    batches: list[BatchReport]
    peak_memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.options.target,
            "drafts": list(self.options.drafts),
            "machine": machine_card(),
            "max_tokens": self.params.max_tokens,
            "temperature": self.params.temperature,
            "prompts": list(self.prompts),
            "peak_memory_bytes": self.peak_memory_bytes,
            "batches": [{"batch_size": b.batch_size, "rows": b.rows()} for b in self.batches],
        }

    def to_markdown(self) -> str:
        title = f"{self.options.target}: {len(self.prompts)} prompts, {self.params.max_tokens} tokens"
        lines = [
            f"# {title}, temperature {self.params.temperature:g}",
            "",
            f"{machine_card()}; peak memory {self.peak_memory_bytes / 1e9:.2f} GB",
        ]
        for batch in self.batches:
            lines += ["", f"## Batch {batch.batch_size}", "", _table(batch.rows())]
        return "\n".join(lines)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = [
        "configuration",
        "tok/s",
        "speed-up, median [95 %]",
        "least",
        "acceptance length",
        "rate",
        "drafting",
    ]
    header += ["accepted per position", "same output"]
    cells = []
    for row in rows:
        low, high = row["speedup_interval"]
        cells.append(
            (
                row["configuration"],
                f"{row['tokens_per_second']:.2f}",
                f"{row['speedup_median']:.2f} [{low:.2f}, {high:.2f}]",
                f"{row['speedup_least']:.2f}",
                f"{row['acceptance_length']:.2f}",
                f"{100 * row['acceptance_rate']:.0f} %" if row["draft_tokens"] else "-",
                f"{100 * row['draft_time_share']:.0f} %",
                " ".join(f"{share:.2f}" for share in row["per_position_acceptance"][:5]) or "-",
                f"{row['same_outputs']} of {row['outputs']}",
            )
        )
    return table(header, cells, "lrrrrrrlr")


def machine_card() -> str:
    """The machine in a line; times mean nothing without it."""
    where = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    )
    simd = torch.backends.cpu.get_cpu_capability()
    return (
        f"{platform.machine()} {simd}, {where}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"anydraft {__version__}"
    )


def bench(
    options: BenchOptions,
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    progress: Progress = lambda line: None,
) -> BenchReport:
    """Load everything once, then measure batch size by batch size."""
    plain = Engine(options.target, method="none", dtype=options.dtype, device=options.device)
    target = plain.pair.target
    engines = {
        draft: Engine(
            target,
            draft,
            dtype=options.dtype,
            device=options.device,
            draft_quantization=options.draft_quantization,  # type: ignore[arg-type]
        )
        for draft in options.drafts
    }
    loaded = load_model(options.drafts[0], dtype=options.dtype) if _needs_draft(options) else None
    batches = []
    for batch_size in options.batch_sizes:
        configurations: list[Configuration] = [
            EngineConfiguration(BASELINE, plain.with_method("none", max_num_seqs=batch_size))
        ]
        configurations += [
            TransformersPeer(kind, target, loaded) for kind in options.peers if batch_size == 1
        ]
        for method in options.methods:
            for draft, engine in engines.items() if method != "lookup" else list(engines.items())[:1]:
                configured = engine.with_method(
                    method, num_speculative_tokens=options.num_speculative_tokens, max_num_seqs=batch_size
                )
                name = method if method == "lookup" else f"{method} <- {draft}"
                configurations.append(EngineConfiguration(name, configured))
        batches.append(
            BatchReport(batch_size, measure(configurations, prompts, params, batch_size, progress))
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return BenchReport(options, params, tuple(p.id for p in prompts), batches, peak)


def _needs_draft(options: BenchOptions) -> bool:
    return "transformers-assisted" in options.peers and bool(options.drafts)
