"""What commands print: one JSON object or a table on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from anydraft.models.cache import gigabytes
from anydraft.models.download import Progress


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object, the only thing on stdout under ``--json``."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_text(text: str = "") -> None:
    """Print a line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_progress(line: str) -> None:
    """A line on stderr while something long goes on."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextmanager
def pull_progress(name: str) -> Iterator[Progress]:
    """Progress of a pull on stderr: a bar on a terminal, a line a step elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: _print_step(name, what, done, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None, amount="")

        def show(what: str, done: int, total: int) -> None:
            # Converting has no measure of its own: a bar that moves tells that it goes on.
            bar.update(
                task,
                description=f"{name}: {what}",
                completed=done,
                total=None if what == "converting" else total,
                amount="" if what == "converting" else f"{gigabytes(done)} of {gigabytes(total)}",
            )

        yield show


def _print_step(name: str, what: str, done: int, total: int) -> None:
    amount = "" if what in ("converting", "ready") else f" ({gigabytes(done)} of {gigabytes(total)} so far)"
    sys.stderr.write(f"{name}: {what}{amount}\n")
    sys.stderr.flush()
