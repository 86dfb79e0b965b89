"""One engine, requests with methods of their own; and what the engine tells of each step."""

from __future__ import annotations

import math

import pytest

from anydraft.engine import GenerationResult
from anydraft.engine.engine import Engine
from anydraft.errors import PairError, UsageError
from anydraft.methods.auto import Auto
from anydraft.methods.base import Drafted, Rollout
from anydraft.rules.params import SamplingParams
from tests import tiny

METHODS = [None, "none", "slem", "tli", "lookup", "auto", "slrs"]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(tiny.llama(), tiny.gemma3(), method="auto", dtype="float32", max_num_seqs=4)


def run_together(engine: Engine, methods: list[str | None], params: SamplingParams) -> list[GenerationResult]:
    prompt = engine.encode("The quick brown fox")
    ids = [engine.add_encoded(prompt, params, engine.choose_method(m)) for m in methods]
    results = {}
    while engine.core.has_unfinished:
        for delta in engine.core.step():
            if delta.result is not None:
                results[delta.request_id] = delta.result
    return [results[i] for i in ids]


def test_methods_mixed_in_one_batch_give_the_targets_text(engine: Engine) -> None:
    alone = Engine(tiny.llama(), method="none", dtype="float32").generate("The quick brown fox", GREEDY)[0]
    results = run_together(engine, METHODS, GREEDY)
    assert {r.token_ids for r in results} == {alone.token_ids}
    names = ["auto(slem+lookup)", "none", "slem", "tli", "lookup", "auto(slem+lookup)", "slrs"]
    assert [r.stats.method for r in results] == names
    assert results[1].stats.num_draft_tokens == 0
    assert results[2].stats.num_draft_tokens > 0


def test_a_requests_own_number_of_drafts(engine: Engine) -> None:
    for count in (1, 3):
        deltas = list(engine.stream("The quick", GREEDY, method="slem", num_speculative_tokens=count))
        assert deltas[-1].result is not None
        assert len(deltas[-1].result.stats.accepted_per_position) == count


def test_the_engines_own_method_is_not_made_again(engine: Engine) -> None:
    assert engine.choose_method(None) is engine.choose_method("auto") is engine.pair.method
    assert engine.choose_method("slem") is engine.choose_method("slem")
    assert engine.choose_method("none") is None


def test_what_a_request_cannot_have(engine: Engine) -> None:
    with pytest.raises(UsageError, match="magic"):
        engine.choose_method("magic")
    with pytest.raises(UsageError, match="at least 1"):
        engine.choose_method("slem", 0)
    with pytest.raises(PairError, match="standard"):
        engine.choose_method("standard")
    alone = Engine(tiny.llama(), method="none", dtype="float32")
    with pytest.raises(UsageError, match="draft"):
        alone.choose_method("slem")


def test_every_auto_sees_the_same_costs_and_only_its_own_drafts(engine: Engine) -> None:
    """Other methods' draft forwards cost something else: they must not teach auto."""
    other = engine.choose_method("auto", 3)
    assert isinstance(other, Auto)
    assert isinstance(engine.pair.method, Auto)
    assert other.costs is engine.pair.method.costs is engine.core.costs
    engine.core.costs.clear()
    run_together(engine, ["slem", "none"], GREEDY)
    assert engine.core.costs.target
    assert not engine.core.costs.draft
    run_together(engine, ["auto", "none"], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert set(engine.core.costs.draft) <= {1, 2}
    assert engine.core.costs.draft


def test_deltas_carry_the_logprobs_of_their_tokens(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)
    deltas = list(engine.stream("The quick", params, method="slem"))
    result = deltas[-1].result
    assert result is not None
    assert all(len(d.logprobs or ()) == len(d.token_ids) == len(d.sources) for d in deltas)
    assert sum((d.logprobs or () for d in deltas), ()) == result.logprobs
    assert all(d.logprobs is None for d in engine.stream("The quick", GREEDY))


def test_the_predicted_speedup_needs_a_measured_plain_step() -> None:
    engine = Engine(tiny.llama(), tiny.llama(), method="standard", dtype="float32")
    result = engine.generate("The quick", GREEDY)[0]
    assert math.isnan(result.stats.alone_time)
    assert result.stats.predicted_speedup is None
    assert result.stats.to_dict()["alone_time"] is None
    engine.warm_up()
    assert 1 in engine.core.costs.target
    result = engine.generate("The quick", GREEDY)[0]
    spent = result.stats.draft_time + result.stats.target_time
    assert result.stats.predicted_speedup == pytest.approx(result.stats.alone_time / spent)
    assert result.stats.alone_time > 0


def test_a_draft_ends_after_the_token_that_makes_the_rest_unlikely() -> None:
    """That token has been paid for, so it is proposed."""
    backend = Engine(tiny.llama(), tiny.llama(), method="standard", dtype="float32").pair.backend
    assert backend is not None

    def drawn(min_survival: float) -> tuple[int, ...]:
        ask = Rollout(context=[5, 6, 7], stable=0, max_tokens=6, min_survival=min_survival)
        answer = backend.answer({"a": ask})["a"]
        assert isinstance(answer, Drafted)
        return answer.token_ids

    whole = drawn(0.0)
    assert len(whole) == 6
    assert drawn(1.0) == whole[:1]
    assert len(whole) > len(drawn(1e-4)) > 1
