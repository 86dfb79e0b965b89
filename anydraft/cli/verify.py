"""``anydraft verify``: is it lossless, here, with this pair?"""

from __future__ import annotations

from typing import Annotated

import typer

from anydraft.cli.options import (
    Device,
    DraftQuantization,
    Dtype,
    JsonReport,
    NumSpeculativeTokens,
    Prompts,
    RequiredDraft,
    Target,
)


def verify(
    target: Target,
    draft: RequiredDraft,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method to verify; may be given again. By default all that suit the pair."),
    ] = None,
    prompts: Prompts = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(help="So many prompts: built-in ones (by default 20), or the first of FILE (all)."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each greedy or coupled output.")] = 64,
    batch_size: Annotated[int, typer.Option(help="Requests at once; batches of 4 run besides.")] = 1,
    num_speculative_tokens: NumSpeculativeTokens = None,
    sampling: Annotated[
        bool, typer.Option("--sampling/--no-sampling", help="Test sampled and coupled tokens too.")
    ] = True,
    temperature: Annotated[float, typer.Option(help="Of sampled tokens.")] = 1.0,
    contexts: Annotated[int, typer.Option(help="Contexts to sample after.")] = 4,
    draws: Annotated[
        int, typer.Option(help="Samples of each context; more of them see smaller errors.")
    ] = 250,
    verification: Annotated[
        list[str] | None,
        typer.Option(help="rejection (default) or block; may be given again.", metavar="NAME"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is sampled.")] = 0,
    false_alarm: Annotated[
        float, typer.Option(help="How probable it may be that a lossless engine is flagged.")
    ] = 1e-4,
    dtype: Dtype = None,
    draft_quantization: DraftQuantization = "auto",
    device: Device = None,
    json: JsonReport = False,
) -> None:
    """Run TARGET alone and with DRAFT, and say whether the output is the target's own.

    Greedy outputs are compared token by token; where they differ, the target's float32 logits tell a tie
    within numerical noise from a mistake. Sampled tokens are tested against the target's probabilities;
    coupled outputs must be equal for equal seeds.

    Exit code 0: lossless. 1: an output or a sample is not the target's, or a model cannot run. 2: wrong usage.
    """
    from anydraft.bench.verify import VerifySettings
    from anydraft.bench.verify import verify as run_verify
    from anydraft.bench.verify_text import to_markdown
    from anydraft.cli.options import chosen_prompts
    from anydraft.cli.output import print_json, print_text
    from anydraft.cli.progress import counted_progress

    settings = VerifySettings(
        methods=tuple(method) if method else None,
        max_tokens=max_tokens,
        batch_size=batch_size,
        num_speculative_tokens=num_speculative_tokens,
        sampling=sampling,
        temperature=temperature,
        num_contexts=contexts,
        num_draws=draws,
        verifications=tuple(verification or ("rejection",)),  # type: ignore[arg-type]
        seed=seed,
        false_alarm=false_alarm,
    )
    chosen = chosen_prompts(prompts, num_prompts, 20)
    with counted_progress() as progress:
        report = run_verify(
            target,
            draft,
            chosen,
            settings,
            dtype=dtype,
            draft_quantization=draft_quantization,  # type: ignore[arg-type]
            device=device,
            progress=progress,
        )
    if json:
        print_json(report.to_dict())
    else:
        print_text(to_markdown(report).rstrip("\n"))
    raise typer.Exit(report.exit_code)
