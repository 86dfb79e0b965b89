"""``anydraft verify`` from the command line, on tiny models in folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from anydraft.cli.main import app
from anydraft.engine import sampler
from anydraft.rules.verify import Verdict
from tests import tiny


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folders = []
    for name, (model, tokenizer) in (("target", tiny.llama()), ("draft", tiny.gemma3())):
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folders.append(folder)
    return folders[0], folders[1]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_text("The quick brown fox\ndef fib(n):\nThe dog sleeps\n", encoding="utf-8")
    return path


def run(pair: tuple[Path, Path], *arguments: object) -> Result:
    given = ["verify", *pair, "--dtype", "float32", "--max-tokens", 6, *arguments]
    return CliRunner().invoke(app, [str(a) for a in given])


def test_a_table_for_people_and_progress_on_stderr(pair: tuple[Path, Path], prompts: Path) -> None:
    result = run(pair, "--prompts", prompts, "--no-sampling", "--method", "slem", "--method", "lookup")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"# {pair[0]} <- {pair[1]}, float32\n\n**Lossless.**\n")
    assert result.stdout.count("\n| slem ") == result.stdout.count("\n| lookup ") == 2
    assert "Sampling" not in result.stdout
    assert "greedy: slem, batch 4: 3 of 3\n" in result.stderr


def test_json_is_one_object_and_nothing_else(pair: tuple[Path, Path], prompts: Path) -> None:
    options = ("--method", "tli", "--contexts", 1, "--draws", 20, "--num-prompts", 2, "--batch-size", 2)
    result = run(pair, "--prompts", prompts, *options, "--json")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    data = json.loads(result.stdout)
    assert (data["lossless"], data["exit_code"], data["dtype"]) == (True, 0, "float32")
    assert [(c["mode"], c["batch_size"], c["num_identical"]) for c in data["comparisons"]] == [
        ("greedy", 2, 2),
        ("greedy", 4, 2),
        ("coupled", 2, 2),
        ("coupled", 4, 2),
    ]
    assert [(s["method"], s["num_draws"]) for s in data["sampling"]] == [("none", 20), ("tli", 20)]
    assert all(0.0 < s["smallest_p_value"] <= 1.0 for s in data["sampling"])


def test_a_mismatch_exits_with_1(
    pair: tuple[Path, Path], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept_all(argmax_ids: list[int], token_ids: tuple[int, ...]) -> Verdict:
        return Verdict((*token_ids, argmax_ids[len(token_ids)]), len(token_ids))

    monkeypatch.setattr(sampler, "verify_greedy", accept_all)
    result = run(pair, "--prompts", prompts, "--no-sampling", "--method", "slem")
    assert result.exit_code == 1
    assert "NOT lossless" in result.stdout
    assert ": mismatch" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-tokens", 0), "max_tokens"),
        (("--num-prompts", 0), "--num-prompts 0"),
        (("--num-prompts", 100_000), "100000 prompts"),
        (("--prompts", "nowhere.txt"), "nowhere.txt"),
        (("--verification", "vote"), "vote"),
        (("--temperature", 0), "temperature"),
        (("--method", "magic"), "magic"),
    ],
)
def test_wrong_usage_exits_with_2(
    pair: tuple[Path, Path], arguments: tuple[object, ...], message: str
) -> None:
    result = run(pair, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
