"""The checks for GPUs, on small models on a CPU: they pass there, and see what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anydraft
from anydraft.models.graphs import Recording, StepGraphs
from scripts import gpu_check, gpu_check_hosts, spelling_models
from tests import tiny
from tests.models import tape

CPU = torch.device("cpu")


@pytest.mark.parametrize("part", ["methods", "graphs", "shapes"])
def test_what_needs_no_host_passes_on_a_cpu(part: str) -> None:
    assert gpu_check.PARTS[part](CPU) == []


def test_a_target_spells_on_from_the_end_of_a_token() -> None:
    tokenizer = tiny.byte_level()
    model = spelling_models.spelling_model(spelling_models.SMALL, tokenizer, CPU, torch.bfloat16)
    params = anydraft.SamplingParams(temperature=0, max_tokens=120)
    (result,) = anydraft.Engine((model, tokenizer), method="none").generate(
        [spelling_models.TEXT[:-3]], params
    )
    assert result.text.startswith(spelling_models.TEXT[-3:] + spelling_models.TEXT)


def test_another_text_is_found_in_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(range(100))

    class Liar:
        def __init__(self, target: Any, **options: Any) -> None:
            self.method = options["method"]

        def generate(self, prompts: Any, params: Any) -> Any:
            told = next(texts) if self.method in ("slem", "auto") else 0
            return [type("Result", (), {"token_ids": (told,)})()]

    next(texts)  # 0 is the target's own
    monkeypatch.setattr(anydraft, "Engine", Liar)
    assert gpu_check.check_methods(CPU) == ["slem writes another text", "auto writes another text"]


def test_a_draft_that_is_not_accepted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = spelling_models.spelling_model

    def mute(shape: Any, *rest: Any) -> Any:
        model = made(shape, *rest)
        if shape is spelling_models.SMALLER:
            torch.nn.init.normal_(model.get_output_embeddings().weight)
        return model

    monkeypatch.setattr(gpu_check, "spelling_model", mute)
    wrong = gpu_check.check_shapes(CPU)
    assert [w.split(" bring")[0] for w in wrong] == ["1 rows: slem's drafts", "4 rows: slem's drafts"]


class _Refusing:
    def record(self, call: Callable[[], torch.Tensor]) -> Recording:
        raise RuntimeError("no")


def test_steps_that_are_not_captured_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "TapeRecorder", _Refusing)
    wrong = gpu_check.check_graphs(CPU)
    assert [w.split(": ")[1] for w in wrong] == ["not captured"] * 4


def test_replays_at_a_wrong_position_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = StepGraphs.forward

    def behind(self: Any, first_row: int, ids: Any, starts: Any, only: Any) -> Any:
        return replay(self, first_row, ids, [start - 1 for start in starts], only)

    monkeypatch.setattr(StepGraphs, "forward", behind)
    wrong = gpu_check.check_graphs(CPU)
    assert len(wrong) == 4
    assert all("logits are off by" in w for w in wrong)


def test_a_host_that_writes_another_text_or_accepts_little_is_found() -> None:
    def run(folder: Path, target: str, method: str | None) -> Any:
        for name in ("spelling", "draft", "random"):
            assert {"config.json", "tokenizer.json", "model.safetensors"} <= {
                file.name for file in (folder / name).iterdir()
            }
        return {"outputs": [[1 if method == "tli" else 0]], "accepted": 0.5 if target == "random" else 0.9}

    assert gpu_check_hosts.texts_and_acceptance(CPU, run, ("slem", "tli"), ("standard", 0.6)) == [
        "spelling target: tli writes another text",
        "random target: standard's drafts are accepted 0.50 of the time",
    ]


def test_a_part_that_takes_too_long_or_fails_has_not_passed(capfd: pytest.CaptureFixture[str]) -> None:
    assert not gpu_check.passed("methods", "cpu", 0.01)
    assert not gpu_check.passed("methods", "cpu", -1.0)
    assert gpu_check.report("methods", ["slem writes another text"]) == 1
    out = capfd.readouterr().out
    assert "not done after 0 s" in out and "no time is left" in out and "FAILED: slem writes" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_check"])
    assert gpu_check.main() == 1
    assert "no CUDA device" in capsys.readouterr().err


def test_a_part_that_was_asked_for_and_is_not_here_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "lacking", lambda part: "it is not installed" if part == "vllm" else None)
    monkeypatch.setattr(gpu_check, "passed", lambda part, device, seconds: True)
    for given, code in ((["--only", "vllm"], 1), (["--only", "methods"], 0), ([], 0)):
        monkeypatch.setattr("sys.argv", ["gpu_check", "--device", "cpu", *given])
        assert gpu_check.main() == code
    assert capsys.readouterr().out.count("vllm: not checked: it is not installed") == 2
