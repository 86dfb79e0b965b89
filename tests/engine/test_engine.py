"""The engine on tiny real models: what comes out is what the target alone gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anydraft.engine.engine import Engine
from anydraft.errors import UsageError
from anydraft.rules.params import SamplingParams
from tests import tiny

PROMPTS = [
    "def fib(n):\n    if n",
    "The quick brown fox",
    "größer 😀",
    "1111111111",
    "The dog sleeps; the fox",
]
METHODS = ["tli", "slem", "lookup", "auto"]
PAIRS = {"llama<-gemma3": (tiny.llama, tiny.gemma3), "gemma3<-llama": (tiny.gemma3, tiny.llama)}


@torch.inference_mode()
def transformers_greedy(pair: tuple[Any, Any], prompt: str, max_tokens: int) -> list[int]:
    model, tokenizer = pair
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, num_beams=1
    )
    return out[0, ids.shape[1] :].tolist()


@pytest.fixture(params=PAIRS, scope="module")
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    target, draft = PAIRS[request.param]
    return target(), draft()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("max_num_seqs", [1, 4])
def test_greedy_equals_transformers(pair: tuple[Any, Any], method: str, max_num_seqs: int) -> None:
    target, draft = pair
    engine = Engine(target, draft, method=method, max_num_seqs=max_num_seqs, dtype="float32")
    results = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=40))
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == transformers_greedy(target, prompt, 40)
        assert result.finish_reason == (
            "stop" if result.token_ids[-1] in engine.pair.target.stop_ids else "length"
        )
        assert len(result.sources) == len(result.token_ids)


def test_self_draft_accepts_everything() -> None:
    engine = Engine(tiny.llama(), tiny.llama(), method="standard", num_speculative_tokens=4, dtype="float32")
    result = engine.generate("The quick", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0]
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.acceptance_length == 5.0
    assert result.stats.num_steps == 4


@pytest.mark.parametrize("method", ["tli", "slem", "lookup", "standard"])
def test_exact_match_sampling_equals_ar_with_the_same_seed(method: str) -> None:
    """Draws are named by output position: methods that verify by exact match reproduce AR's text."""
    target = tiny.llama()
    draft = tiny.llama(seed=5) if method == "standard" else tiny.gemma3()
    params = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=30, seed=7, draft_temperature=0.0)
    alone = Engine(target, method="none", dtype="float32").generate(PROMPTS, params)
    engine = Engine(target, draft, method=method, dtype="float32", draft_temperature=0.0)
    together = engine.generate(PROMPTS, params)
    assert [r.token_ids for r in alone] == [r.token_ids for r in together]


def test_a_seed_reproduces_whatever_the_batch() -> None:
    engine = Engine(tiny.llama(), tiny.gemma3(), method="tli", dtype="float32")
    params = SamplingParams(temperature=1.0, max_tokens=24, seed=3)
    together = engine.generate(PROMPTS, params)
    single = [engine.generate(prompt, params)[0] for prompt in PROMPTS]
    assert [r.token_ids for r in together] == [r.token_ids for r in single]
    other = engine.generate(PROMPTS, SamplingParams(temperature=1.0, max_tokens=24, seed=4))
    assert [r.token_ids for r in together] != [r.token_ids for r in other]


def test_penalties_and_bias_at_every_position() -> None:
    """Case 8: greedy with processors equals AR with the same processors, in the middle of blocks too."""
    target = tiny.llama()
    for params in (
        SamplingParams(temperature=0, max_tokens=30, repetition_penalty=1.5, frequency_penalty=0.3),
        SamplingParams(temperature=0, max_tokens=30, logit_bias={100: 4.0, 120: -5.0}, presence_penalty=1.0),
        SamplingParams(temperature=0, max_tokens=30, min_tokens=25),
    ):
        alone = Engine(target, method="none", dtype="float32").generate(PROMPTS, params)
        drafted = Engine(target, tiny.llama(seed=0), method="standard", dtype="float32").generate(
            PROMPTS, params
        )
        assert [r.token_ids for r in alone] == [r.token_ids for r in drafted]
        assert max(r.stats.acceptance_length for r in drafted) > 1.5


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_max_tokens_cuts_inside_a_block(max_tokens: int) -> None:
    """Case 9."""
    engine = Engine(tiny.llama(), tiny.llama(), method="standard", num_speculative_tokens=5, dtype="float32")
    result = engine.generate(
        "The quick", SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    )[0]
    assert len(result.token_ids) == max_tokens
    assert result.finish_reason == "length"


def test_stop_string_and_end_token_inside_a_block() -> None:
    """Case 9: text, ids, counts and finish reason agree with AR's."""
    target = tiny.llama()
    free = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    alone = Engine(target, method="none", dtype="float32")
    text = alone.generate(PROMPTS[0], free)[0].text
    stop = text[11:14]
    ids = alone.generate(PROMPTS[0], free)[0].token_ids
    drafted = Engine(target, tiny.llama(), method="standard", num_speculative_tokens=7, dtype="float32")
    for params in (
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop),
        SamplingParams(
            temperature=0, max_tokens=40, ignore_eos=True, stop=[stop], include_stop_str_in_output=True
        ),
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop_token_ids=[ids[10]]),
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop, min_tokens=20),
    ):
        a, b = alone.generate(PROMPTS[0], params)[0], drafted.generate(PROMPTS[0], params)[0]
        assert (a.text, a.token_ids, a.finish_reason, a.stop_reason) == (
            b.text,
            b.token_ids,
            b.finish_reason,
            b.stop_reason,
        )
        assert a.finish_reason == "stop" or params.min_tokens
        streamed = list(drafted.stream(PROMPTS[0], params))
        assert "".join(d.text for d in streamed) == a.text
        assert sum((d.token_ids for d in streamed), ()) == a.token_ids


def test_streaming_pieces_make_the_text() -> None:
    engine = Engine(tiny.gemma3(), tiny.llama(), method="slem", dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=30)
    deltas = list(engine.stream("größer 😀", params))
    result = deltas[-1].result
    assert result is not None
    assert all(d.result is None for d in deltas[:-1])
    assert "".join(d.text for d in deltas) == result.text


def test_a_closed_stream_frees_its_row() -> None:
    engine = Engine(tiny.llama(), tiny.gemma3(), method="slem", dtype="float32")
    stream = engine.stream("The quick", SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    next(stream)
    stream.close()
    assert not engine.core.has_unfinished


def test_more_requests_than_rows_queue_up() -> None:
    engine = Engine(tiny.llama(), tiny.gemma3(), method="slem", max_num_seqs=2, dtype="float32")
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 17, 5, 1, 9, 30, 2)]
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(len(params))]
    results = engine.generate(prompts, params)
    assert [len(r.token_ids) for r in results] == [3, 17, 5, 1, 9, 30, 2]
    alone = Engine(tiny.llama(), method="none", dtype="float32").generate(prompts, params)
    assert [r.token_ids for r in alone] == [r.token_ids for r in results]


def test_places_that_are_taken_again_are_told_from_those_that_stay_empty() -> None:
    engine = Engine(tiny.llama(), method="none", max_num_seqs=2, dtype="float32")
    told: list[tuple[int, int]] = []
    engine.core.costs.observe_places = lambda *counts: told.append(counts)  # type: ignore[method-assign]

    def places(*lengths: int) -> list[tuple[int, int]]:
        told.clear()
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
        engine.generate([PROMPTS[0]] * len(params), params)
        return [(left, taken) for left, taken in told if left]

    assert places(3, 7) == [(1, 0)]
    assert places(3, 7, 7) == [(1, 1), (1, 0)]
    assert places(3, 3, 3, 3) == [], "rows that end together leave nobody waiting"
    first, second = (
        engine.add_request(PROMPTS[0], SamplingParams(temperature=0, max_tokens=9)) for _ in range(2)
    )
    engine.core.step()
    told.clear()
    engine.core.abort(first)
    engine.core.step()
    assert told == [(1, 0)]
    engine.core.abort(second)
    assert places(2) == [], "what an abort left empty is forgotten"


def test_chat_uses_each_models_own_template() -> None:
    """Case 10: the draft's context is its own rendering, not the target's markers."""
    engine = Engine(tiny.llama(), tiny.gemma3(), method="slem", dtype="float32")
    conversation = [{"role": "user", "content": "Why is the sky blue?"}]
    seen: list[list[int]] = []
    backend = engine.pair.backend
    assert backend is not None
    answer = backend.answer

    def spy(asks: Any) -> Any:
        seen.extend(list(ask.context) for ask in asks.values())
        return answer(asks)

    backend.answer = spy  # type: ignore[method-assign]
    result = engine.generate(
        messages=[conversation], sampling_params=SamplingParams(temperature=0, max_tokens=12)
    )
    own = tiny.sentencepiece_like().apply_chat_template(
        conversation, add_generation_prompt=True, return_dict=False
    )
    assert seen
    assert all(context[: len(own)] == own for context in seen)
    assert all(context.count(own[0]) == 1 for context in seen)
    alone = Engine(tiny.llama(), method="none", dtype="float32").generate(
        messages=[conversation], sampling_params=SamplingParams(temperature=0, max_tokens=12)
    )
    assert alone[0].token_ids == result[0].token_ids


def test_models_are_never_changed() -> None:
    """Case 15: a draft, then alone, then the draft of another target."""
    model, tokenizer = tiny.gemma3()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    config = model.config.to_dict()
    alone = transformers_greedy((model, tokenizer), PROMPTS[0], 10)
    for method in ("tli", "slem", "slrs"):
        Engine(tiny.llama(), (model, tokenizer), method=method, dtype="float32").generate(PROMPTS[:2])
    assert transformers_greedy((model, tokenizer), PROMPTS[0], 10) == alone
    Engine(tiny.llama(seed=9), (model, tokenizer), method="tli", dtype="float32").generate(PROMPTS[:1])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.config.to_dict() == config


def test_a_text_longer_than_the_drafts_context_goes_on() -> None:
    model, tokenizer = tiny.gemma3()
    engine = Engine(tiny.llama(), (model, tokenizer), method="slem", dtype="float32")
    engine.pair.backend._runner.max_context = 48  # type: ignore[union-attr]
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    result = engine.generate(PROMPTS[0] * 3, params)[0]
    assert list(result.token_ids) == list(
        Engine(tiny.llama(), method="none", dtype="float32").generate(PROMPTS[0] * 3, params)[0].token_ids
    )
    assert result.stats.num_draft_tokens > 0


def test_a_bad_prompt_leaves_the_others_unharmed() -> None:
    engine = Engine(tiny.llama(), tiny.gemma3(), dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    good, empty, long, surrogate = engine.generate(["The quick", "", "fox " * 400, "a\ud800b"], params)
    assert good.finish_reason == "length"
    assert len(good.token_ids) == 5
    assert empty.finish_reason == long.finish_reason == surrogate.finish_reason == "error"
    assert "empty" in (empty.error or "")
    assert "256" in (long.error or "")
    assert "surrogate" in (surrogate.error or "")
    assert not engine.core.has_unfinished
    with pytest.raises(UsageError, match="empty"):
        engine.generate("")


def test_parameters_that_leave_nothing_end_that_request_only() -> None:
    engine = Engine(tiny.llama(), method="none", dtype="float32")
    end = engine.pair.target.stop_ids
    bad = SamplingParams(temperature=0, min_tokens=3, max_tokens=5, allowed_token_ids=sorted(end))
    good = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    results = engine.generate(["The quick", "The quick"], [bad, good])
    assert results[0].finish_reason == "error"
    assert "ban every token" in (results[0].error or "")
    assert len(results[1].token_ids) == 5


def test_logprobs_are_the_targets_own() -> None:
    params = SamplingParams(temperature=0, max_tokens=9, logprobs=3, ignore_eos=True)
    alone = Engine(tiny.llama(), method="none", dtype="float32").generate("The quick", params)[0]
    drafted = Engine(tiny.llama(), tiny.llama(), method="standard", dtype="float32").generate(
        "The quick", params
    )[0]
    assert alone.logprobs is not None
    assert drafted.logprobs is not None
    assert len(drafted.logprobs) == len(drafted.token_ids) == 9
    for token, a, b in zip(drafted.token_ids, alone.logprobs, drafted.logprobs, strict=True):
        assert b[token].rank == 1
        assert a.keys() == b.keys()
        assert a[token].logprob == pytest.approx(b[token].logprob, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, "magic"),
        ({"num_speculative_tokens": 0}, "at least 1"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"verification": "vote"}, "vote"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Engine(tiny.llama(), tiny.gemma3(), dtype="float32", **arguments)


def test_a_method_without_its_draft_is_refused() -> None:
    with pytest.raises(UsageError, match="draft"):
        Engine(tiny.llama(), method="slem", dtype="float32")


@pytest.mark.parametrize("given", [{"num_speculative_tokens": 0}, {"draft_quantization": "int3"}])
def test_options_that_make_no_sense_are_refused_before_anything_is_loaded(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(given))}="):
        Engine("/nowhere/target", "/nowhere/draft", **given)


def test_padded_rows_of_the_draft_are_never_proposed() -> None:
    """Case 3: the same vocabulary, one model padded to more rows."""
    for target, draft in (
        (tiny.llama(), tiny.llama(padded_rows=56)),
        (tiny.llama(padded_rows=56), tiny.llama()),
    ):
        engine = Engine(target, draft, dtype="float32")
        assert engine.method == "auto(standard+lookup)"
        result = engine.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=30))[0]
        assert list(result.token_ids) == transformers_greedy(target, PROMPTS[0], 30)


def test_another_method_on_the_same_models() -> None:
    """Nothing is loaded or copied again, and the first engine stays as it was."""
    target, draft = tiny.llama(), tiny.gemma3()
    engine = Engine(target, draft, method="slem", dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=20)
    alone = engine.with_method("none", max_num_seqs=2).generate(PROMPTS, params)
    drafted = engine.with_method("tli", num_speculative_tokens=3).generate(PROMPTS, params)
    assert [r.token_ids for r in alone] == [r.token_ids for r in drafted]
    assert [r.stats.method for r in (*alone, *drafted)] == ["none"] * len(PROMPTS) + ["tli"] * len(PROMPTS)
    assert max(len(r.stats.accepted_per_position) for r in drafted) <= 3
    assert engine.method == "slem"
    assert engine.with_method("tli").pair.runner is engine.pair.runner
    with pytest.raises(UsageError, match="at least 1"):
        engine.with_method("tli", num_speculative_tokens=0)


def test_auto_of_another_engine_decides_by_its_own_measurements() -> None:
    """It must not wait forever for what another's steps would have taught it."""
    engine = Engine(tiny.llama(), tiny.gemma3(), method="slem", dtype="float32").with_method("auto")
    result = engine.generate(PROMPTS[:1], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))[0]
    assert engine.pair.method.costs is engine.core.costs
    assert result.stats.num_drafts > 0
