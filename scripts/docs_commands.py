"""Writes docs/commands.md from the commands themselves: usage, arguments, options, exit codes.

    python scripts/docs_commands.py [--check]

With --check nothing is written; exit code 1 if the page is not what it would be.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from anydraft.bench.markdown import code, table
from anydraft.cli.main import COMMANDS

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"

HEAD = """# Commands

Made by `scripts/docs_commands.py` from the code; `anydraft COMMAND --help` says the same.

Results go to stdout (with `--json` one JSON object and nothing else), progress and messages to stderr. Models are
named by packaged name, local folder, GGUF file or hub id. `anydraft --version` shows the version, `--verbose` before a
command says more.

Exit codes, unless a command says otherwise: 0 good, 1 failed, 2 wrong usage, 130 interrupted.
"""


def page() -> str:
    """The whole page."""
    links = " · ".join(f"[{c.__name__}](#{c.__name__})" for c in COMMANDS)
    return "\n".join([HEAD, links, *(_command(command) for command in COMMANDS)]) + "\n"


def _command(command: Callable[..., None]) -> str:
    parameters = list(_parameters(command))
    usage = ["anydraft", command.__name__, *(p.usage for p in parameters if p.usage), "[OPTIONS]"]
    return "\n".join(
        [
            f"\n## {command.__name__}\n",
            f"    {' '.join(usage)}\n",
            inspect.cleandoc(command.__doc__ or ""),
            "",
            table(["argument or option", "default", "what"], [p.row for p in parameters]),
        ]
    )


class _Parameter:
    """One argument or option, as its function declares it."""

    def __init__(self, name: str, annotation: Any, info: OptionInfo | ArgumentInfo, default: Any) -> None:
        self._type, self._many = _plain(annotation)
        self._info = info
        self._required = default is inspect.Parameter.empty
        self._default = default
        self._argument = isinstance(info, ArgumentInfo)
        self._name = name.upper() if self._argument else f"--{name.replace('_', '-')}"

    @property
    def usage(self) -> str:
        """Of an argument in the usage line; empty for an option."""
        if not self._argument:
            return ""
        text = self._name + ("..." if self._many else "")
        return text if self._required else f"[{text}]"

    @property
    def _has_default(self) -> bool:
        """Whether it has one that says something: not None, and not the state of a flag that is not given."""
        nothing = self._default is None or self._default is inspect.Parameter.empty
        return not nothing and self._type is not bool

    @property
    def row(self) -> tuple[str, str, str]:
        if self._argument:
            shown = code(self.usage)
        else:
            # Within Annotated the first of the names stands where a default would.
            declared = [self._info.default, *(getattr(self._info, "param_decls", None) or ())]
            names = [n for d in declared if isinstance(d, str) and d.startswith("-") for n in d.split("/")]
            shown = ", ".join(code(n) for n in names or [self._name])
            if self._type is not bool:
                shown += f" {self._info.metavar or self._type.__name__}"
        default = code(str(self._default)) if self._has_default else ""
        what = " ".join((self._info.help or "").split())
        if self._info.envvar:
            what += f" Environment: {code(str(self._info.envvar))}."
        return shown, default, what


def _parameters(command: Callable[..., None]) -> Iterator[_Parameter]:
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        annotation, info = typing.get_args(hints[name])[:2]
        yield _Parameter(name, annotation, info, parameter.default)


def _plain(annotation: Any) -> tuple[type, bool]:
    """The type behind "X | None" and "list[X]", and whether it is a list."""
    if isinstance(annotation, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not types.NoneType)
    if typing.get_origin(annotation) is list:
        return typing.get_args(annotation)[0], True
    return annotation, False


def main() -> None:
    text = page()
    if sys.argv[1:] == ["--check"]:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE} is stale; run python scripts/docs_commands.py")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
