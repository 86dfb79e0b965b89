"""The bench: what it runs, in which order, and what it makes of the times."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from anydraft.bench.bench_report import BatchReport, BenchOptions, BenchReport
from anydraft.bench.measure import (
    Series,
    Timed,
    measure,
    median_and_interval,
    per_position,
    predicted_speedup,
)
from anydraft.bench.peers import ASSISTED, Assistant, TransformersPeer
from anydraft.bench.prompts import BenchPrompt, file_prompts, packaged_prompts
from anydraft.bench.same_output import OutputJudge
from anydraft.cli.main import app
from anydraft.engine import Engine, RequestStats
from anydraft.engine.core import EngineCore
from anydraft.engine.outputs import Delta
from anydraft.errors import UsageError
from anydraft.methods.costs import CostModel
from anydraft.models.load import load_model
from anydraft.rules.params import SamplingParams
from tests import tiny


class _Fake:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def run(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> Timed:
        self._log.append(f"{self.name}:{','.join(p.id for p in prompts)}")
        return Timed(2.0, tuple((1, 2) for _ in prompts), RequestStats())


def test_the_order_rotates_and_every_configuration_is_warmed_up() -> None:
    log: list[str] = []
    prompts = [BenchPrompt(str(i), "x", prompt="p") for i in range(5)]
    series = measure([_Fake("a", log), _Fake("b", log)], prompts, SamplingParams(), 2)
    assert log[:2] == ["a:0,1", "b:0,1"]
    assert log[2:] == ["a:0,1", "b:0,1", "b:2,3", "a:2,3", "a:4", "b:4"]
    assert [len(s.runs) for s in series] == [3, 3]
    assert series[0].tokens_per_second == pytest.approx(10 / 6)


def test_ratios_are_prompt_by_prompt() -> None:
    base = Series("AR", [Timed(1.0, ((1, 2),), RequestStats()), Timed(4.0, ((1, 2),), RequestStats())])
    other = Series("x", [Timed(0.5, ((1, 2),), RequestStats()), Timed(4.0, ((1, 3),), RequestStats())])
    assert other.ratios(base) == [2.0, 1.0]
    assert other.same_outputs(base) == (1, 2)


def test_decoding_alone_leaves_the_targets_reading_of_the_prompt_out() -> None:
    base = Series("AR", [Timed(3.0, ((1, 2),), RequestStats(prefill_time=1.0))])
    other = Series("x", [Timed(2.0, ((1, 2),), RequestStats(prefill_time=1.0, draft_time=0.2))])
    assert other.ratios(base) == [1.5]
    assert other.decode_ratios(base) == [2.0]


def test_the_prediction_is_by_costs_and_acceptance() -> None:
    costs = CostModel()
    costs.observe_target(1, 0.1)
    costs.observe_target(3, 0.12)
    stats = RequestStats(num_steps=10, num_draft_tokens=20, num_accepted_tokens=10, draft_time=0.3)
    assert predicted_speedup(costs, stats, 1) == pytest.approx(20 * 0.1 / (10 * 0.12 + 0.3))
    assert predicted_speedup(CostModel(), stats, 1) is None


def test_median_and_interval_bracket() -> None:
    median, low, high = median_and_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert median == 3.0
    assert 1.0 <= low <= median <= high <= 100.0


def test_acceptance_per_position_is_a_share_of_the_drafts() -> None:
    stats = RequestStats()
    stats.record(3, 2, lookup=False, draft_model_tokens=3)
    stats.record(2, 0, lookup=False, draft_model_tokens=2)
    assert per_position(stats) == [0.5, 0.5, 0.0]


def test_packaged_prompts_come_in_turn() -> None:
    prompts = packaged_prompts(8)
    assert [p.category for p in prompts] == ["code", "writing", "maths", "summary"] * 2
    assert all(bool(p.prompt) != bool(p.messages) for p in packaged_prompts(100))
    assert sum(p.category == "summary" for p in packaged_prompts(40)) == 10
    with pytest.raises(UsageError, match="asked for"):
        packaged_prompts(10_000)


def test_packaged_prompts_of_chosen_categories() -> None:
    prompts = packaged_prompts(4, ["summary", "code"])
    assert [p.category for p in prompts] == ["summary", "code"] * 2
    assert all(
        130 <= len(p.text.split("\n\n", 1)[1].split()) <= 180 for p in packaged_prompts(10, ["summary"])
    )
    with pytest.raises(UsageError, match="has 10 of summary"):
        packaged_prompts(11, ["summary"])
    with pytest.raises(UsageError, match="poetry"):
        packaged_prompts(1, ["poetry"])


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        'plain text\n\n{"prompt": "p", "id": "a"}\n{"messages": [{"role": "user", "content": "m"}]}\n'
    )
    plain, raw, chat = file_prompts(path)
    assert (plain.text, raw.text, chat.text) == ("plain text", "p", "m")
    path.write_text('{"prompt": "p", "messages": []}\n')
    with pytest.raises(UsageError, match="either 'prompt'"):
        file_prompts(path)
    with pytest.raises(UsageError, match="cannot be read"):
        file_prompts(tmp_path / "none")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    paths = []
    for name, (model, tokenizer) in {"target": tiny.llama(), "draft": tiny.gemma3()}.items():
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        paths.append(str(folder))
    return paths[0], paths[1]


def test_the_command_reports_every_configuration(folders: tuple[str, str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def fib(n):\nThe quick brown fox\n")
    given = "--method slem --method lookup --batch-size 1 --batch-size 2 --peer transformers --max-tokens 8"
    given += f" --peer transformers-assisted --dtype float32 --json --prompts {prompts}"
    arguments = ["bench", *folders, *given.split()]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert [b["batch_size"] for b in report["batches"]] == [1, 2]
    rows = {row["configuration"]: row for row in report["batches"][0]["rows"]}
    draft = f"slem <- {folders[1]}"
    assert list(rows) == ["AR", "transformers", f"transformers-assisted <- {folders[1]}", draft, "lookup"]
    assert rows["AR"]["speedup_median"] == 1.0
    assert rows[draft]["same_outputs"] == rows[draft]["outputs"] == 2
    assert rows["transformers"]["same_outputs"] == 2
    assert rows[draft]["draft_tokens"] > 0
    groups = rows[draft]["groups"]
    assert [g["prompts"] for g in groups] == [["prompts/1"], ["prompts/2"]]
    assert all(0 < g["num_tokens"] <= 8 and g["num_prompt_tokens"] >= 4 for g in groups)
    assert all(0 < g["decode_seconds"] < g["seconds"] for g in groups)
    assert all(0 < g["decode_seconds"] < g["seconds"] for g in rows["transformers"]["groups"])
    assert rows[draft]["speedup_least"] == min(g["speedup"] for g in groups)
    assert report["batches"][1]["rows"][0]["groups"][0]["prompts"] == ["prompts/1", "prompts/2"]


def test_a_queue_is_given_at_once_and_runs_by_rows(
    folders: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[tuple[int, int]] = []
    step = EngineCore.step

    def watched(core: EngineCore) -> list[Delta]:
        deltas = step(core)
        running.append((core.num_running, core.num_waiting))
        return deltas

    monkeypatch.setattr(EngineCore, "step", watched)
    predicted_for: set[int] = set()
    monkeypatch.setattr(
        "anydraft.bench.measure.predicted_speedup", lambda costs, stats, rows: predicted_for.add(rows)
    )
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(["one two", "def fib(n):", "three", "four five", "six"]))
    given = f"--batch-size 2 --queue 2 --method slem --max-tokens 8 --dtype float32 --prompts {prompts}"
    result = CliRunner().invoke(app, ["bench", *folders, *given.split(), "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    groups = report["batches"][0]["rows"][1]["groups"]
    assert [len(g["prompts"]) for g in groups] == [4, 1]
    assert report["queue"] == 2
    assert predicted_for == {2, 1}
    assert max(rows for rows, _ in running) == 2
    assert max(waiting for _, waiting in running) == 2
    result = CliRunner().invoke(app, ["bench", *folders, *given.split()])
    assert "## Batch 2, 2 prompts a row in a queue" in result.stdout


def test_transformers_assists_with_each_draft(folders: tuple[str, str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def fib(n):\n")
    given = (
        "--peer transformers-assisted --peer transformers-lookup --method slrs --max-tokens 8 --dtype float32"
    )
    arguments = ["bench", *folders, folders[0], *given.split(), "--prompts", str(prompts), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    rows = {row["configuration"]: row for row in json.loads(result.stdout)["batches"][0]["rows"]}
    other, same = (f"transformers-assisted <- {folder}" for folder in (folders[1], folders[0]))
    ours = [f"slrs <- {folder}" for folder in (folders[1], folders[0])]
    assert list(rows) == ["AR", other, same, "transformers-lookup", *ours]
    assert all(row["same_outputs"] == 1 for row in rows.values())
    # The target drafting for itself: so each row is of the draft that it names.
    assert rows[same]["acceptance_length"] > 1.5 * rows[other]["acceptance_length"]


def test_a_peer_that_samples_wrongly_is_refused_and_the_draft_named(folders: tuple[str, str]) -> None:
    target, other = folders
    arguments = ["bench", target, target, other, "--peer", "transformers-assisted", "--temperature", "0.7"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    said = result.stderr.splitlines()[-1]
    assert "does not sample the target's text" in said
    assert f"cannot run with {other} at" in said


@pytest.mark.parametrize("kind", ["transformers", "transformers-lookup", ASSISTED])
def test_end_tokens_that_are_ignored_end_nothing(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    prompt = BenchPrompt("fib", "code", prompt="def fib(n):")
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    own = Engine(_target("float32"), method="none").generate([prompt.text], params)[0].token_ids
    model, tokenizer = _target("float32")
    model.generation_config.eos_token_id = own[1]
    target = load_model((model, tokenizer))
    copied = load_model((copy.deepcopy(model), tokenizer))
    peer = TransformersPeer(kind, target, Assistant("d", copied, False) if kind == ASSISTED else None)
    copied.model.generation_config.assistant_confidence_threshold = 0.0
    with caplog.at_level(logging.WARNING):
        logging.getLogger("transformers").addHandler(caplog.handler)
        try:
            run = peer.run([prompt], params)
        finally:
            logging.getLogger("transformers").removeHandler(caplog.handler)
    assert run.token_ids == (own,)
    assert "eos_token_id" not in caplog.text
    if kind == ASSISTED:  # twice five drafted and one more: no draft is cut off at an end token
        assert run.stats.num_steps == 2
    ended = peer.run([prompt], SamplingParams(temperature=0.0, max_tokens=12))
    assert ended.token_ids == (own[:2],)


def test_a_draft_of_the_same_vocabulary_may_assist_when_sampling(
    folders: tuple[str, str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def fib(n):\n")
    given = f"--peer transformers-assisted --temperature 0.7 --max-tokens 4 --prompts {prompts} --json"
    arguments = ["bench", folders[0], folders[0], *given.split(), "--dtype", "float32"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr


def test_a_peer_that_does_not_say_how_long_it_drafts_has_no_share() -> None:
    base = Series("AR", [Timed(1.0, ((1, 2),), RequestStats(num_steps=2))])
    peer = Series("vllm-tli", [Timed(1.0, ((1, 2),), RequestStats(num_steps=1, num_accepted_tokens=1))])
    batch = BatchReport(1, ("p",), [base, peer])
    assert [row["draft_time_share"] for row in batch.rows()] == [0.0, None]
    report = BenchReport(BenchOptions("t", ()), SamplingParams(), ("p",), [batch], 0, "machine")
    line = next(x for x in report.to_markdown().splitlines() if "vllm-tli" in x)
    assert [cell.strip() for cell in line.split("|")][8] == "-"


def _target(dtype: str, twins: tuple[int, int] | None = None) -> Any:
    """A target with the same logits for two tokens."""
    model = copy.deepcopy(tiny.llama()[0]).to(getattr(torch, dtype))
    if twins:
        with torch.no_grad():
            model.lm_head.weight[twins[1]] = model.lm_head.weight[twins[0]]
    return model, tiny.byte_level()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tie_is_named_and_so_is_what_is_none(dtype: str) -> None:
    prompt = BenchPrompt("fib", "code", prompt="def fib(n):")
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    own = Engine(_target(dtype), method="none").generate([prompt.text], params)[0].token_ids
    twin, wrong = ((own[0] + n) % 300 for n in (1, 2))
    plain = Engine(_target(dtype, (own[0], twin)), method="none")

    def series(name: str, first: int) -> Series:
        return Series(name, [Timed(1.0, ((first, *own[1:]),), RequestStats(num_steps=4))])

    batch = BatchReport(1, ("fib",), [series("AR", own[0]), series("x", twin), series("y", wrong)])
    batch.judge(OutputJudge(plain, [prompt]))
    report = BenchReport(BenchOptions("t", ()), params, ("fib",), [batch], 0, "machine")
    rows = {row["configuration"]: row for row in batch.rows()}
    assert [rows[n]["ties"] for n in ("AR", "x", "y")] == [0, 1, 0]
    text = report.to_markdown()
    assert "0 of 1 (1 tie)" in text
    assert "0 of 1 (1 not a tie)" in text
    assert f"the target's own {dtype} logits" in text
    assert "- not a tie: fib, token 1: " in text
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "magic"),
        (["--peer", "magic"], "magic"),
        (["--batch-size", "0"], "at least 1"),
        (["--queue", "0"], "--queue must be at least 1, got 0"),
        (["--num-prompts", "100000"], "asked for"),
        (["--num-prompts", "0"], "at least 1"),
        (["--category", "poetry"], "poetry"),
        (["--category", "code", "--prompts", "mine.txt"], "--category"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "target", "draft", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
