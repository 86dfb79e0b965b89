"""Replays are the engine's own steps; costs and acceptance become a ranking; what the command says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from anydraft.bench import recommend as module
from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.recommend import RecommendOptions, recommend
from anydraft.bench.recommend_report import Candidate, RecommendReport
from anydraft.bench.replay import Known, RememberingDraft, ReplayedStep, acceptance_length, replay
from anydraft.bench.step_costs import PacedMethod, StepCosts, measure_costs
from anydraft.cli.main import app
from anydraft.engine import Engine
from anydraft.engine.outputs import GenerationResult
from anydraft.methods.base import Expand, Prompt, Rollout, drive
from anydraft.models.load import load_model
from anydraft.rules.params import SamplingParams
from tests import tiny

PROMPTS = ["def fib(n):\n", "The quick brown fox jumps over the lazy", "1234567890 数学"]


def generated(engine: Engine, prompt: str, max_tokens: int) -> GenerationResult:
    return engine.generate([prompt], SamplingParams(temperature=0.0, max_tokens=max_tokens))[0]


PAIRS = {
    "itself": (tiny.llama, tiny.llama),
    "another family": (tiny.llama, tiny.gemma3),
    "the other way": (tiny.gemma3, tiny.llama),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("method", ["slem", "tli", "lookup"])
@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_replay_is_the_engines_own_steps(pair: str, method: str, length: int) -> None:
    target, draft = (make() for make in PAIRS[pair])
    engine = Engine(target, draft, method=method, num_speculative_tokens=length, max_num_seqs=1)
    for prompt in PROMPTS:
        result = generated(engine, prompt, 40)
        text = Known(result.prompt_token_ids, result.token_ids)
        backend = engine.pair.backend and RememberingDraft(engine.pair.backend, 8)
        chosen = {n: engine.choose_method(method, n) for n in (length, 8)}
        replay(chosen, text, backend)  # type: ignore[arg-type]
        # The draft now remembers some of the places that the engine's steps begin at, and is asked at others.
        steps = replay({length: chosen[length]}, text, backend)[length]  # type: ignore[dict-item]
        stats = result.stats
        assert len(steps) == stats.num_steps
        assert sum(s.num_accepted for s in steps) == stats.num_accepted_tokens
        assert sum(s.num_proposed for s in steps) == stats.num_draft_tokens
        assert sum(s.num_drawn for s in steps) == stats.num_draft_model_tokens
        assert sum(s.num_emitted for s in steps) == len(result.token_ids)
        assert acceptance_length(steps) == stats.acceptance_length


def test_the_pairs_above_accept_something() -> None:
    for method, least in (("tli", 1.2), ("slem", 1.0)):
        engine = Engine(tiny.llama(), tiny.llama(), method=method, num_speculative_tokens=5, max_num_seqs=1)
        assert generated(engine, PROMPTS[0], 40).stats.acceptance_length > least


def test_shorter_drafts_are_beginnings_of_the_longest() -> None:
    engine = Engine(tiny.llama(), tiny.llama(), method="slem", max_num_seqs=1)
    result = generated(engine, PROMPTS[1], 30)
    text = Known(result.prompt_token_ids, result.token_ids)
    methods = {n: engine.choose_method("slem", n) for n in (1, 2, 4)}
    assert engine.pair.backend is not None
    steps = replay(methods, text, RememberingDraft(engine.pair.backend, 4))  # type: ignore[arg-type]
    assert {len(s) for s in steps.values()} == {len(steps[4])}
    for one, two, four in zip(steps[1], steps[2], steps[4], strict=True):
        assert one.num_accepted <= two.num_accepted <= four.num_accepted
        assert (one.num_drawn, two.num_drawn) == (min(1, four.num_drawn), min(2, four.num_drawn))


class _Counting:
    """A draft that keeps what it is asked."""

    def __init__(self, draft: Any) -> None:
        self._draft = draft
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    def answer(self, asks: Any) -> Any:
        self.asked += asks.values()
        return self._draft.answer(asks)


def test_a_context_is_asked_for_once_and_nothing_but_greedy_rollouts() -> None:
    engine = Engine(tiny.llama(), tiny.gemma3(), method="slem", max_num_seqs=1)
    counting = _Counting(engine.pair.backend)
    draft = RememberingDraft(counting, 6)
    ids = [5, 6, 7]
    (long,) = draft.answer({0: Rollout(ids, 0, 6)}).values()
    (short,) = draft.answer({0: Rollout(ids, 3, 2)}).values()
    assert len(counting.asked) == 1
    assert short.token_ids == long.token_ids[:2]  # type: ignore[union-attr]
    draft.answer({0: Rollout([5, 6, 8], 2, 6)})
    assert [(a.max_tokens, a.stable) for a in counting.asked] == [(6, 0), (6, 0)], (
        "what is stable since the last ask says nothing of the draft, which did not see all of them"
    )
    with pytest.raises(TypeError, match="Expand"):
        draft.answer({0: Expand(ids, 0, ((),))})
    with pytest.raises(TypeError, match="greedy"):
        draft.answer({0: Rollout(ids, 0, 2, temperature=1.0)})


def test_predicted_speedup_is_tokens_over_time() -> None:
    costs = StepCosts(alone=0.1, target={0: 0.1, 2: 0.12, 4: 0.14}, draft={0: 0.0, 2: 0.02, 4: 0.04})
    assert costs.speedup([ReplayedStep(0, 0, 0, 1)] * 3, 1) == pytest.approx(1.0)
    # 3 tokens for 0.12 + 0.02; 1 for 0.13 + 0.03 (between the measured ones); 5 for 0.16 + 0.06 (beyond them).
    steps = [ReplayedStep(2, 2, 2, 3), ReplayedStep(3, 0, 3, 1), ReplayedStep(6, 4, 6, 5)]
    assert costs.speedup(steps, 2) == pytest.approx(0.9 / (0.14 + 0.16 + 0.22))
    assert replace(costs, draft_reading=0.5).speedup(steps, 2) == pytest.approx(0.9 / (1.0 + 0.52))
    assert costs.draft_step == pytest.approx(0.01)


def test_paced_proposals_have_the_scheduled_length_and_one_right_token() -> None:
    engine = Engine(tiny.llama(), tiny.gemma3(), method="slem", num_speculative_tokens=8, max_num_seqs=1)
    method, backend = engine.pair.method, engine.pair.backend
    assert method is not None and backend is not None
    known = [9, 0, 4, 5]
    proposer = PacedMethod(method, [2, 0, 3, 8], known).start(Prompt(target_ids=(3, 4, 5)))
    lengths, first = [], []
    for emitted in ([9, 0], [4], [5, 6], [7]):
        proposal = drive({0: proposer.propose(6)}, backend)[0]
        lengths.append(len(proposal.token_ids))
        assert proposal.num_draft_tokens <= lengths[-1]
        first.append(proposal.token_ids[:2])
        proposer.observe(emitted)
    assert lengths == [2, 0, 3, 6], "the room of the step is a limit, too"
    assert first == [(9, 1), (), (5, 1), (0, 1)]


def test_costs_are_of_every_length_and_leave_the_engines_free() -> None:
    alone = Engine(tiny.llama(), method="none", max_num_seqs=1)
    drafting = Engine(tiny.llama(), tiny.gemma3(), method="slem", max_num_seqs=1)
    result = generated(alone, PROMPTS[1], 30)
    text = Known(result.prompt_token_ids, result.token_ids)
    method = drafting.choose_method("slem", 4)
    assert method is not None
    costs = measure_costs(alone, drafting, method, [text, text], lengths=(0, 1, 4))
    assert list(costs.target) == [0, 1, 4]
    assert costs.draft[0] == 0.0 and max(costs.draft) == 4
    assert list(costs.target.values()) == sorted(costs.target.values())
    assert costs.alone > 0 and costs.draft_step > 0 and costs.draft_reading >= 0
    assert not alone.core.has_unfinished and not drafting.core.has_unfinished


def fixed_costs(target: float, draft: float) -> Any:
    """Instead of a clock: a step of the target takes 1 and ``target`` a proposed token, a drawn one ``draft``."""

    def measured(alone: Engine, drafting: Engine, method: Any, texts: Sequence[Known]) -> StepCosts:
        lengths = range(9)
        drawn = 0.0 if drafting.pair.backend is None else draft
        return StepCosts(1.0, {n: 1 + target * n for n in lengths}, {n: drawn * n for n in lengths})

    return measured


OPTIONS = RecommendOptions(target=None, max_tokens=24, dtype="float32")


def ranked(monkeypatch: pytest.MonkeyPatch, target: float, draft: float) -> RecommendReport:
    monkeypatch.setattr(module, "measure_costs", fixed_costs(target, draft))
    models = [replace(load_model(m), name=n) for n, m in (("own", tiny.llama()), ("other", tiny.gemma3()))]
    options = replace(OPTIONS, target=tiny.llama(), drafts=tuple(models))
    return recommend(options, [BenchPrompt("p", "", prompt=p) for p in PROMPTS])


def test_the_best_pair_of_draft_and_length_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    report = ranked(monkeypatch, target=0.01, draft=0.01)
    assert {(c.draft, c.method) for c in report.candidates} == {
        (None, "lookup"),
        ("own", "standard"),
        ("other", "slem"),
        ("other", "tli"),
    }
    first = report.ranking[0]
    assert (first.draft, first.method, first.num_speculative_tokens) == ("own", "standard", 8)
    assert first.speedup > 4
    assert first == report.recommended
    assert [c.draft for c in report.ranking].count("other") == 1
    assert first.speedup == max(first.speedups.values())
    assert first.acceptance == (1.0,) * 8 or first.acceptance[0] > 0.8
    assert first.overlap == 1.0
    assert report.exit_code == 0
    assert "own" in report.command and "--num-speculative-tokens 8" in report.command
    assert {(c.draft, c.auto_method) for c in report.candidates} == {
        (None, "lookup"),
        ("own", "standard"),
        ("other", "slem"),
    }


def test_dear_drafts_are_short_and_too_dear_ones_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    report = ranked(monkeypatch, target=0.3, draft=0.6)
    assert {c.num_speculative_tokens for c in report.ranking if c.draft == "other"} == {1}
    report = ranked(monkeypatch, target=1.0, draft=1.0)
    assert report.recommended is None
    assert report.exit_code == 1
    assert "None of these pays" in report.to_markdown()
    assert report.to_dict()["recommended"] is None


def test_a_gain_within_the_error_is_none() -> None:
    candidate = Candidate("d", "slem", 1.0, 3, 1.5, (0.5,), 0.01, 1.04, {3: 1.04}, "slem")
    report = RecommendReport("t", 1, 100, 0.1, {0: 0.1}, (candidate,))
    assert report.recommended is None
    assert replace(report, candidates=(replace(candidate, speedup=1.06),)).recommended is not None


@pytest.mark.parametrize(
    ("draft", "method", "auto_method", "said"),
    [
        ("d", "slem", "slem", "it drafts with `slem` as well, copies"),
        ("d", "tli", "slem", "it drafts with `slem` and not with `tli`, copies"),
        (None, "lookup", "lookup", "without a draft it copies as well"),
    ],
)
def test_what_auto_does_in_its_place_is_said(
    draft: str | None, method: str, auto_method: str, said: str
) -> None:
    candidate = Candidate(draft, method, 1.0, 3, 1.5, (0.5,), 0.01, 1.5, {3: 1.5}, auto_method)
    text = RecommendReport("t", 1, 100, 0.1, {0: 0.1}, (candidate,)).to_markdown()
    assert f"`--method auto`, the default, is not predicted: {said}" in text


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    paths = []
    for name, (model, tokenizer) in {"target": tiny.llama(), "draft": tiny.gemma3()}.items():
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        paths.append(str(folder))
    return paths[0], paths[1]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["recommend", *map(str, arguments)])


def test_the_command(folders: tuple[str, str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS[:2]))
    target, draft = folders
    given = ["--dtype", "float32", "--max-tokens", 16, "--prompts", prompts]
    result = run(target, draft, target, tmp_path / "none", *given, "--json")
    report = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert result.exit_code == report["exit_code"]
    assert {c["draft"] for c in report["ranking"]} == {None, draft, target}
    assert [r["draft"] for r in report["refused"]] == [str(tmp_path / "none")]
    assert report["num_prompts"] == 2 and 2 < report["num_tokens"] <= 32
    speedups = [c["speedup"] for c in report["ranking"]]
    assert speedups == sorted(speedups, reverse=True)
    text = run(target, draft, *given)
    assert "| draft " in text.stdout and draft in text.stdout
    assert "tokens are few" in text.stdout
    assert "the target's own text: 2 of 2" in text.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["TARGET", "--num-prompts", 0], 2, "at least 1"),
        (["TARGET", "--max-tokens", 1], 2, "at least 2"),
        (["TARGET", "DRAFT", "--draft-quantization", "int3"], 2, "int3"),
        (["TARGET", "--prompts", "none.txt"], 2, "none.txt"),
        (["TARGET", "./none", "--max-tokens", 4, "--prompts", "PROMPTS"], 1, "no model at ./none"),
        (["TARGET", "./none", "./neither", "--max-tokens", 4, "--prompts", "PROMPTS"], 1, "./neither"),
        (["./none"], 1, "no model at ./none"),
    ],
)
def test_what_cannot_be_is_one_line(
    folders: tuple[str, str], tmp_path: Path, arguments: list[object], code: int, said: str
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("def fib(n):", encoding="utf-8")
    names = {"TARGET": folders[0], "DRAFT": folders[1], "PROMPTS": str(short)}
    result = run(*(names.get(str(a), a) for a in arguments), "--dtype", "float32")
    assert result.exit_code == code
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("anydraft: ")]
    assert len(lines) == 1 and said in lines[0]
    assert "Traceback" not in result.stderr
