"""``anydraft bench``: how fast on this machine?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anydraft.cli.options import (
    Device,
    DraftQuantization,
    Dtype,
    JsonReport,
    NumSpeculativeTokens,
    Prompts,
    Target,
    Temperature,
)


def bench(
    target: Target,
    drafts: Annotated[list[str], typer.Argument(help="One or more drafts, named the same way.")],
    method: Annotated[
        list[str] | None, typer.Option(help="Method to measure; may be given again.", metavar="NAME")
    ] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="Rows at once; may be given again.")] = None,
    queue: Annotated[
        int,
        typer.Option(
            help="Prompts that are given at once for each of these rows: the others wait for a place, instead of "
            "all rows for the last one."
        ),
    ] = 1,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="transformers, transformers-lookup, transformers-assisted (with each draft), vllm, vllm-tli or "
            "vllm-anydraft (both with the first); may be given again.",
            metavar="NAME",
        ),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(help="So many prompts: of the package (by default 12), or the first of FILE (all)."),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(
            help="code, chat, maths or summary; may be given again. By default all in turn.", metavar="NAME"
        ),
    ] = None,
    prompts: Prompts = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate for each prompt at most.")] = 64,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampled runs.")] = 0,
    num_speculative_tokens: NumSpeculativeTokens = None,
    dtype: Dtype = None,
    draft_quantization: DraftQuantization = "auto",
    device: Device = None,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw pictures into this folder (needs the extra 'plots')."),
    ] = None,
    json: JsonReport = False,
) -> None:
    """Measure TARGET alone and with each draft and method, on the same prompts, in alternating order.

    Speed-ups are medians of the prompts' own ratios to the target alone, with a 95 % interval.
    """
    from anydraft.bench.bench import bench as run_bench
    from anydraft.bench.bench_report import BenchOptions
    from anydraft.bench.peers import PEERS
    from anydraft.bench.plots import draw, require_matplotlib
    from anydraft.cli.options import chosen_prompts
    from anydraft.cli.output import print_json, print_progress, print_text
    from anydraft.errors import UsageError
    from anydraft.methods.select import METHODS
    from anydraft.rules.params import SamplingParams

    unknown = [m for m in method or () if m not in METHODS]
    if unknown:
        raise UsageError(f"--method {unknown[0]} is unknown; use one of {', '.join(METHODS)}")
    unknown = [p for p in peer or () if p not in PEERS]
    if unknown:
        raise UsageError(f"--peer {unknown[0]} is unknown; use one of {', '.join(PEERS)}")
    if any(size < 1 for size in batch_size or ()):
        raise UsageError("--batch-size must be at least 1")
    if queue < 1:
        raise UsageError(f"--queue must be at least 1, got {queue}")
    if plots is not None:
        require_matplotlib()
    chosen = chosen_prompts(prompts, num_prompts, 12, category)
    options = BenchOptions(
        target=target,
        drafts=tuple(drafts),
        methods=tuple(method or ("auto",)),
        batch_sizes=tuple(batch_size or (1,)),
        queue=queue,
        peers=tuple(peer or ()),
        num_speculative_tokens=num_speculative_tokens,
        dtype=dtype,
        device=device,
        draft_quantization=draft_quantization,
    )
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    report = run_bench(options, chosen, params, print_progress)
    if json:
        print_json(report.to_dict())
    else:
        print_text(report.to_markdown())
    if plots is not None:
        for path in draw(report.to_dict(), plots):
            print_progress(f"wrote {path}")
