"""docs/commands.md is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_commands", ROOT / "scripts" / "docs_commands.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script: ModuleType) -> None:
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), (
        "docs/commands.md is stale; run python scripts/docs_commands.py"
    )


def test_check_fails_on_a_stale_page(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "PAGE", tmp_path / "commands.md")
    monkeypatch.setattr("sys.argv", ["docs_commands.py", "--check"])
    with pytest.raises(SystemExit, match=r"run python scripts/docs_commands\.py"):
        script.main()
    monkeypatch.setattr("sys.argv", ["docs_commands.py"])
    script.main()
    monkeypatch.setattr("sys.argv", ["docs_commands.py", "--check"])
    script.main()
    script.PAGE.write_text(script.page() + "more", encoding="utf-8")
    with pytest.raises(SystemExit):
        script.main()


def test_what_a_command_declares_is_what_the_page_says(script: ModuleType) -> None:
    def brew(
        leaves: Annotated[list[str], typer.Argument(help="Which ones.")],
        water: Annotated[str | None, typer.Argument(help="From where.")] = None,
        minutes: Annotated[int, typer.Option(help="How long.", min=1)] = 0,
        cup: Annotated[list[str] | None, typer.Option(metavar="NAME", help="May be given again.")] = None,
        milk: Annotated[bool | None, typer.Option("--milk/--black", help="Or not.")] = None,
        quiet: Annotated[bool, typer.Option("--quiet", envvar="QUIET", help="No whistle.")] = False,
    ) -> None:
        """Make tea.

        Exit code 0: tea.
        """

    text = script._command(brew)
    assert "\n    anydraft brew LEAVES... [WATER] [OPTIONS]\n" in text
    assert "Make tea.\n\nExit code 0: tea." in text
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    assert rows[2:] == [
        ["`LEAVES...`", "", "Which ones."],
        ["`[WATER]`", "", "From where."],
        ["`--minutes` int", "`0`", "How long."],
        ["`--cup` NAME", "", "May be given again."],
        ["`--milk`, `--black`", "", "Or not."],
        ["`--quiet`", "", "No whistle. Environment: `QUIET`."],
    ]
