"""The command line's frame: one Typer app, one way to fail.

A command lives in a file of its own: ``anydraft/cli/pull.py`` has the function ``pull``, whose parameters
Typer reads and whose docstring is its help. To add one, import the function here and append it to
``COMMANDS``. Its file imports only ``typer`` and the standard library at the top and everything else
inside the function, so that ``anydraft --help`` loads no torch.

A command prints its result to stdout (with ``--json`` one object and nothing else, through
:func:`anydraft.cli.output.print_json`) and everything else to stderr. It fails by raising an
:class:`~anydraft.errors.AnyDraftError`, or ends with ``raise typer.Exit(code)``.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from anydraft._version import __version__
from anydraft.cli.bench import bench
from anydraft.cli.chat import chat
from anydraft.cli.check import check
from anydraft.cli.models import models
from anydraft.cli.pull import pull
from anydraft.cli.recommend import recommend
from anydraft.cli.run import run
from anydraft.cli.serve import serve
from anydraft.cli.verify import verify
from anydraft.errors import AnyDraftError

COMMANDS: tuple[Callable[..., None], ...] = (
    run,
    chat,
    serve,
    check,
    recommend,
    verify,
    bench,
    models,
    pull,
)
"""In the order of ``--help``."""

_INTERRUPTED = 130

app = typer.Typer(
    name="anydraft",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Lossless speculative decoding with any draft model for any target model, whatever their tokenizers.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")] = False,
) -> None:
    logging.getLogger("anydraft").setLevel(logging.INFO if verbose else logging.WARNING)


def _failing_in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with its errors as a line on stderr and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except AnyDraftError as error:
            _say(str(error))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(_INTERRUPTED) from None

    return wrapped


for _command in COMMANDS:
    app.command()(_failing_in_one_line(_command))


def main() -> None:
    """Run the command line and exit: 0 good, 1 failed, 2 wrong usage, 130 interrupted."""
    _log_to_stderr()
    app(prog_name="anydraft")


def _say(text: str) -> None:
    sys.stderr.write(f"anydraft: {' '.join(text.split())}\n")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("anydraft: %(message)s"))
    logger = logging.getLogger("anydraft")
    logger.handlers[:] = [handler]
    logger.propagate = False
