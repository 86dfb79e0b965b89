"""``verify`` on tiny real pairs: lossless engines pass, and each kind of mistake is found and told apart."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.ties import Divergence, Reference, judge
from anydraft.bench.verify import RAGGED, VerifySettings, verify
from anydraft.bench.verify_report import VerifyReport
from anydraft.bench.verify_text import to_markdown
from anydraft.engine import sampler
from anydraft.engine.request import FinishReason, Request
from anydraft.errors import UsageError
from anydraft.models.load import load_model
from anydraft.rules import verify as rules
from anydraft.rules.noise import CoupledNoise
from tests import tiny

PROMPTS = [
    BenchPrompt("a", "code", prompt="def fib(n):\n    if n"),
    BenchPrompt("b", "prose", prompt="The quick brown fox jumps"),
    BenchPrompt("c", "chat", messages=({"role": "user", "content": "größer 😀 or 1111?"},)),
]
SMALL = VerifySettings(max_tokens=8, num_contexts=2, num_draws=30, num_coupled=2)
GREEDY = replace(SMALL, sampling=False)


def run(settings: VerifySettings = SMALL, **options: Any) -> VerifyReport:
    return verify(tiny.llama(), tiny.gemma3(), PROMPTS, settings, dtype="float32", **options)


def test_every_method_that_suits_the_pair_gives_the_targets_tokens() -> None:
    report = run(GREEDY)
    assert report.lossless
    assert report.exit_code == 0
    assert [(c.mode, c.method, c.batch_size) for c in report.comparisons] == [
        ("greedy", method, size)
        for method in ("auto", "tli", "slem", "slrs", "lookup")
        for size in (1, RAGGED)
    ]
    assert all(c.num_identical == c.num_outputs == len(PROMPTS) for c in report.comparisons)
    assert report.sampling == ()
    text = to_markdown(report)
    assert "**Lossless.**" in text
    assert text.count("\n| ") == 2 + 10


def test_lossless_sampling_passes() -> None:
    settings = replace(SMALL, methods=("tli", "slrs", "lookup"), verifications=("rejection", "block"))
    report = run(replace(settings, temperature=0.5))
    assert report.lossless
    coupled = [c for c in report.comparisons if c.mode == "coupled"]
    assert len(coupled) == 6
    assert all(c.num_identical == c.num_outputs == 2 for c in coupled)
    assert [(s.method, s.verification) for s in report.sampling] == [
        ("none", "rejection"),
        ("tli", "rejection"),
        ("tli", "block"),
        ("slrs", "rejection"),
        ("slrs", "block"),
        ("lookup", "rejection"),
    ]
    for check in report.sampling:
        assert check.num_draws == 2 * SMALL.num_draws
        assert {"context 1, first token", "context 2, first token", "all"} <= {t.of for t in check.tests}
        assert any("later tokens" in t.of for t in check.tests)
        assert (check.num_draft_tokens > 0) == (check.method != "none")
    text = to_markdown(report)
    assert text.count("\n| ") == 2 * (2 + 6) + (2 + 6)


def test_the_same_seed_gives_the_same_report() -> None:
    settings = replace(SMALL, methods=("tli",), num_draws=30)
    assert run(settings) == run(settings)
    assert run(settings).sampling != run(replace(settings, seed=1000)).sampling


def test_one_vocabulary_is_verified_with_standard() -> None:
    report = verify(tiny.llama(), tiny.llama(seed=5), PROMPTS[:1], GREEDY, dtype="float32")
    assert {c.method for c in report.comparisons} == {"auto", "standard", "lookup"}


def accept_all(argmax_ids: list[int], token_ids: tuple[int, ...]) -> rules.Verdict:
    return rules.Verdict((*token_ids, argmax_ids[len(token_ids)]), len(token_ids))


def test_a_wrong_token_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "verify_greedy", accept_all)
    report = run(replace(GREEDY, methods=("slem",)))
    assert report.exit_code == 1
    assert all(c.num_mismatches for c in report.comparisons)
    difference = report.comparisons[0].differences[0]
    assert difference.verdict == "mismatch"
    assert difference.behind > 1000 * difference.noise
    assert difference.reference == "float32"
    assert "NOT lossless" in to_markdown(report)
    assert "mismatch" in to_markdown(report).split("##")[1]
    json.dumps(report.to_dict(), allow_nan=False)


def test_an_output_cut_short_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = Request.emit

    def early(self: Request, token_id: int, source: str) -> bool:
        ended = emit(self, token_id, source)
        if self.proposer is not None and self.num_output_tokens == 5 and not ended:
            self.finish_reason = FinishReason.LENGTH
            return True
        return ended

    monkeypatch.setattr(Request, "emit", early)
    report = run(replace(GREEDY, methods=("lookup",)))
    found = report.comparisons[0].differences[0]
    assert (found.position, found.drafted_id, found.gap, found.verdict) == (5, None, None, "mismatch")
    assert "ends here: mismatch" in to_markdown(report)
    json.dumps(report.to_dict(), allow_nan=False)


def no_residual(p: Any, ids: Any, q: Any, noise: Any, position: int) -> rules.Verdict:
    """Rejection whose correction is drawn from p."""
    for i, token in enumerate(ids):
        if not noise.bernoulli(float(p[i, token] / q[i, token]), "accept", position + i):
            return rules.Verdict((*ids[:i], noise.categorical(p[i], "residual", position + i)), i)
    return rules.Verdict((*ids, noise.categorical(p[len(ids)], "target", position + len(ids))), len(ids))


def flatter(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """A draft that is the target at temperature 2."""
    model, tokenizer = copy.deepcopy(pair[0]), pair[1]
    with torch.no_grad():
        model.lm_head.weight *= 0.5
    return model, tokenizer


def test_a_forgotten_residual_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SMALL, methods=("standard",), num_draws=300, num_coupled=1, max_tokens=3)
    monkeypatch.setattr(sampler, "verify_rejection", no_residual)
    report = verify(tiny.llama(), flatter(tiny.llama()), PROMPTS[:1], settings, dtype="float32")
    alone, drafted = report.sampling
    assert not alone.flagged
    assert drafted.flagged
    assert report.exit_code == 1
    assert "NOT lossless: sampled tokens of 1 runs" in to_markdown(report)


def test_a_seed_that_does_not_decide_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coupled requests whose draw depends on the draft."""

    def exact(p: Any, ids: Any, noise: Any, position: int) -> rules.Verdict:
        return rules.verify_exact(p, ids, noise, position + (7 if ids else 0))

    monkeypatch.setattr(sampler, "verify_exact", exact)
    report = run(replace(SMALL, methods=("tli",), num_draws=20))
    assert {c.mode for c in report.comparisons if c.num_mismatches} == {"coupled"}


class Fixed(Reference):
    """A reference with given logits."""

    def __init__(self, logits: list[float], dtype: str = "float32") -> None:
        self.given = torch.tensor(logits)
        self.dtype = dtype

    def logits(self, ids: tuple[int, ...]) -> torch.Tensor:
        return self.given


def divergence(own: int | None, drafted: int | None, logits: list[float], **coupled: Any) -> Divergence:
    return Divergence("x", 3, (1, 2), own, drafted, torch.tensor(logits), **coupled)


@pytest.mark.parametrize(
    ("own", "drafted", "running", "logits", "reference", "dtype", "verdict"),
    [
        (0, 1, "bfloat16", [10.0, 10.0, 0.0], [10.0, 9.9, 0.0], "float32", "tie"),
        (0, 1, "bfloat16", [10.0, 9.75, 0.0], [10.0, 9.75, 0.02], "float32", "mismatch"),  # no such noise
        (0, 2, "bfloat16", [10.0, 9.9, 9.9], [10.0, 9.95, 9.9], "float32", "tie"),  # third, but within noise
        (0, 2, "bfloat16", [10.0, 9.9, 5.0], [10.0, 9.95, 5.0], "float32", "mismatch"),
        (
            1,
            2,
            "bfloat16",
            [9.0, 5.0, 5.0],
            [9.0, 5.0, 5.05],
            "float32",
            "mismatch",
        ),  # equal, but far from best
        (0, 1, "bfloat16", [10.0, 4.0, 0.0], [10.0, 8.0, 0.0], "float32", "mismatch"),  # noise is no rounding
        (0, 1, "float32", [10.0, 9.9995, 0.0], [10.0, 9.9995, 0.0], "float32", "tie"),
        (0, 1, "float32", [10.0, 9.99, 0.0], [10.0, 9.99, 0.0], "float32", "mismatch"),
        (0, 1, "float32", [10.0, 10.0, 0.0], [10.0, 9.99, 0.0], "float32", "mismatch"),
        (0, 1, "bfloat16", [10.0, 10.0, 0.0], [10.0, 9.75, 0.0], "bfloat16", "tie"),
        (0, 1, "bfloat16", [10.0, 10.0, 0.0], [10.0, 9.0, 0.0], "bfloat16", "mismatch"),
        (0, None, "bfloat16", [10.0, 10.0, 0.0], [10.0, 10.0, 0.0], "float32", "mismatch"),
    ],
)
def test_noise_is_told_from_mistakes(
    own: int, drafted: int | None, running: str, logits: Any, reference: Any, dtype: str, verdict: str
) -> None:
    """Case 11."""
    found = judge(
        divergence(own, drafted, logits), Fixed(reference, dtype), getattr(torch, running), {0: "a", 1: "b"}
    )
    assert found.verdict == verdict
    if drafted is not None:
        assert found.gap == pytest.approx(abs(reference[own] - reference[drafted]), abs=1e-5)
        assert found.top_two == ({own, drafted} == set(torch.tensor(reference).topk(2).indices.tolist()))


def test_coupled_ties_are_those_of_the_race() -> None:
    """The two tokens of a coupled tie arrive together, however far apart their logits are."""
    temperature, seed = 0.5, 11
    arrivals = CoupledNoise(seed).arrivals(3, 3).log()
    logits = [2.0, float(2.0 + temperature * (arrivals[1] - arrivals[0])), -60.0]
    near = [logits[0], logits[1] + 0.01, logits[2]]
    race = {"temperature": temperature, "seed": seed}
    tie = judge(divergence(0, 1, logits, **race), Fixed(near), torch.bfloat16, {})
    assert tie.verdict == "tie"
    assert tie.gap == pytest.approx(0.02, abs=1e-4)
    assert judge(divergence(0, 1, logits, **race), Fixed(logits), torch.bfloat16, {}).behind < 1e-6
    apart = [logits[0], logits[1] - 3.0, logits[2]]
    assert judge(divergence(0, 1, apart, **race), Fixed(apart), torch.bfloat16, {}).verdict == "mismatch"


def test_the_reference_is_the_plain_model_in_float32() -> None:
    model, _ = tiny.llama()
    running = load_model(tiny.llama())
    reference = Reference(tiny.llama(), running)
    assert reference.dtype == "float32"
    with torch.inference_mode():
        plain = model(torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert torch.allclose(reference.logits((5, 6, 7)), plain, atol=1e-5)


def test_progress_counts_to_the_end() -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    def progress(what: str, done: int, total: int) -> None:
        seen.setdefault(what, []).append((done, total))

    run(replace(SMALL, methods=("lookup",), num_draws=5), progress=progress)
    assert [*seen][:3] == ["loading", "greedy: the target alone", "greedy: lookup, batch 1"]
    for calls in seen.values():
        assert calls == [(i, calls[0][1]) for i in range(calls[0][1] + 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"num_draws": 0},
        {"temperature": 0.0},
        {"false_alarm": 0.0},
        {"verifications": ("coupled",)},
        {"verifications": ()},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        VerifySettings(**wrong)


def test_prompts_and_methods_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="no prompts"):
        verify(tiny.llama(), tiny.gemma3(), [], GREEDY, dtype="float32")
    with pytest.raises(UsageError, match="method none"):
        run(replace(GREEDY, methods=("none",)))
    long = BenchPrompt("far too long", "code", prompt="fox " * 400)
    with pytest.raises(UsageError, match=r"prompt far too long: .*256"):
        verify(tiny.llama(), tiny.gemma3(), [PROMPTS[0], long], GREEDY, dtype="float32")
