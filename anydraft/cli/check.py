"""``anydraft check``: will these two work together, and how well?"""

from __future__ import annotations

from typing import Annotated

import typer

from anydraft.cli.options import JsonReport


def check(
    target: Annotated[
        str,
        typer.Argument(help="Packaged name, folder, GGUF file or hub id of the model whose text you want."),
    ],
    draft: Annotated[str, typer.Argument(help="The same, of the small model that drafts.")],
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="FILE", help="Weigh by this text instead of the built-in samples."),
    ] = None,
    json: JsonReport = False,
) -> None:
    """Say whether two models work together, and how well, without loading their weights.

    Exit code 0: works. 1: works, but is not advised: even a draft that never errs would give less than 2.0
    target tokens a call on every kind of text, or the draft has more than 0.6 of the target's parameters.
    2: refused, or wrong usage.
    """
    from anydraft.bench.check import check as analyse
    from anydraft.bench.check_text import to_markdown
    from anydraft.bench.samples import sample_texts, user_text
    from anydraft.cli.output import print_json, print_text
    from anydraft.errors import AnyDraftError, UsageError
    from anydraft.models.describe import describe_model

    try:
        own = None if text is None else user_text(text)
        report = analyse(describe_model(target), describe_model(draft), sample_texts(), own)
    except AnyDraftError as error:
        if json:
            print_json({"verdict": "refused", "exit_code": 2, "reason": str(error)})
        raise UsageError(str(error)) from error  # exit code 1 means something else here
    if json:
        print_json(report.to_dict())
    else:
        print_text(to_markdown(report).rstrip("\n"))
    raise typer.Exit(report.exit_code)
