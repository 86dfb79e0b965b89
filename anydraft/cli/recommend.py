"""``anydraft recommend``: which draft, which method, how many tokens a step?"""

from __future__ import annotations

from typing import Annotated

import typer

from anydraft.cli.options import Device, DraftQuantization, Dtype, JsonReport, Prompts, Target


def recommend(
    target: Target,
    drafts: Annotated[
        list[str] | None,
        typer.Argument(help="Drafts to rank, named the same way; by default the packaged ones in the cache."),
    ] = None,
    prompts: Prompts = None,
    num_prompts: Annotated[
        int | None, typer.Option(help="So many prompts: by default 4, of FILE all.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens that the target writes after each prompt.")] = 48,
    dtype: Dtype = None,
    draft_quantization: DraftQuantization = "auto",
    device: Device = None,
    json: JsonReport = False,
) -> None:
    """Rank drafts for TARGET by the speed-up predicted on this machine, with the best method for each.

    The target writes a short text once; each draft is tried against it, and steps of both are timed. Greedy, one
    request at a time. Other work on the machine spoils the prediction.

    Exit code 0: something pays. 1: none of these pays (less than 1.05x), or a model cannot run. 2: wrong usage.
    """
    from anydraft.bench.recommend import RecommendOptions
    from anydraft.bench.recommend import recommend as rank
    from anydraft.cli.options import chosen_prompts
    from anydraft.cli.output import print_json, print_text
    from anydraft.cli.progress import counted_progress

    chosen = chosen_prompts(prompts, num_prompts, 4)
    options = RecommendOptions(
        target=target,
        drafts=tuple(dict.fromkeys(drafts or ())),
        max_tokens=max_tokens,
        dtype=dtype,
        device=device,
        draft_quantization=draft_quantization,  # type: ignore[arg-type]
    )
    with counted_progress() as progress:
        report = rank(options, chosen, progress)
    if json:
        print_json(report.to_dict())
    else:
        print_text(report.to_markdown())
    raise typer.Exit(report.exit_code)
