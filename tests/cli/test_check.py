"""``anydraft check`` on folders that hold a config and a tokenizer and no weights at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models
from typer.testing import CliRunner, Result

from anydraft.cli.main import app
from tests import tiny


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def folder(path: Path, tokenizer: Any, config: Any | None = None, **given: Any) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if config is None:
        config = transformers.LlamaConfig(**{**sizes, "vocab_size": len(tokenizer), **given})
    config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return folder(tmp_path / "target", tiny.byte_level(), num_hidden_layers=20)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return folder(tmp_path / "draft", tiny.sentencepiece_like())


def test_a_good_pair_exits_with_0_and_says_why(target: Path, draft: Path):
    result = run(target, draft)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"# {target} <- {draft}\n\n**Works.**\n")
    assert "Method: `slem`" in result.stdout
    assert "Python code" in result.stdout
    assert result.stderr == ""


def test_a_draft_as_large_as_the_target_exits_with_1(target: Path):
    result = run(target, target)
    assert result.exit_code == 1
    assert "Works, but is not advised" in result.stdout
    assert "1.00 times the target's" in result.stdout


def test_json_is_one_object_and_nothing_else(target: Path, draft: Path):
    result = run(target, draft, "--json")
    data = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert (data["verdict"], data["exit_code"], result.exit_code) == ("works", 0, 0)
    assert (data["target"]["name"], data["draft"]["name"]) == (str(target), str(draft))
    assert data["advice"]["method"] == "slem"
    assert data["draft"]["num_parameters"] < data["target"]["num_parameters"]


def test_the_users_text_is_weighed_first(target: Path, draft: Path, tmp_path: Path):
    own = tmp_path / "own.txt"
    own.write_text("The quick brown fox jumps over the lazy dog.\n" * 3)
    data = json.loads(run(target, draft, "--text", own, "--json").stdout)
    assert data["texts"][0]["kind"] == "your text"
    assert data["texts"][0]["num_bytes"] == own.stat().st_size


def encoder(path: Path) -> Path:
    config = transformers.BertConfig(vocab_size=400, hidden_size=32, num_attention_heads=4)
    config.architectures = ["BertForMaskedLM"]
    return folder(path, tiny.byte_level(), config)


def encoder_decoder(path: Path) -> Path:
    return folder(path, tiny.byte_level(), transformers.T5Config(vocab_size=400, d_model=32))


def recurrent(path: Path) -> Path:
    return folder(path, tiny.byte_level(), transformers.MambaConfig(vocab_size=400, hidden_size=32))


def wordpiece(path: Path) -> Path:
    words = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    return folder(path, transformers.PreTrainedTokenizerFast(tokenizer_object=words))


def without_tokenizer(path: Path) -> Path:
    transformers.LlamaConfig(vocab_size=400).save_pretrained(path)
    return path


def nothing(path: Path) -> Path:
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (encoder, "not a causal language model"),
        (encoder_decoder, "encoder-decoder"),
        (recurrent, "recurrent"),
        (wordpiece, "WordPiece"),
        (without_tokenizer, "no tokenizer"),
        (nothing, "no model at"),
    ],
)
@pytest.mark.parametrize("side", ["target", "draft"])
def test_what_cannot_work_is_refused_in_one_line(
    target: Path, tmp_path: Path, make: Any, reason: str, side: str
):
    bad = make(tmp_path / "bad")
    pair = (bad, target) if side == "target" else (target, bad)
    result = run(*pair)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("anydraft: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr


def test_a_refusal_is_json_too(target: Path, tmp_path: Path):
    result = run(target, tmp_path / "bad", "--json")
    data = json.loads(result.stdout)
    assert (data["verdict"], data["exit_code"], result.exit_code) == ("refused", 2, 2)
    assert str(tmp_path / "bad") in data["reason"]


def test_an_unreadable_text_is_named(target: Path, draft: Path, tmp_path: Path):
    result = run(target, draft, "--text", tmp_path / "none.txt")
    assert result.exit_code == 2
    assert "none.txt" in result.stderr
