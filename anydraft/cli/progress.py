"""Progress of a long command, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Calls (what, done, total) become a bar on a terminal; elsewhere a line where something begins or ends."""
    if not sys.stderr.isatty():
        yield _print_ends
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, object] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bar.update(task, visible=False)  # type: ignore[arg-type]
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield show


def _print_ends(what: str, done: int, total: int) -> None:
    if done == 0 or done == total:
        sys.stderr.write(f"{what}: {done} of {total}\n")
        sys.stderr.flush()
