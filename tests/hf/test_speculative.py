"""Speculation inside ``generate``: the same tokens, and nothing that was asked for is ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TextStreamer,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import MaxTimeCriteria

import anydraft.hf
from anydraft.errors import UsageError
from anydraft.hf.arguments import sampling_options
from anydraft.rules.params import SamplingParams
from anydraft.rules.sampling import History, probabilities
from tests import tiny

PROMPTS = ["def fib(n):\n    if n", "The quick brown fox", "größer 😀 1111"]
PAIRS = {"llama<-gemma3": (tiny.llama, tiny.gemma3), "gemma3<-llama": (tiny.gemma3, tiny.llama)}


@pytest.fixture(params=PAIRS, scope="module")
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    target, draft = PAIRS[request.param]
    return target(), draft()


def encoded(tokenizer: Any, prompts: list[str]) -> Any:
    return tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")


def inputs_of(prompts: list[str]) -> dict[str, Any]:
    return dict(encoded(tiny.byte_level(), prompts))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("method", ["auto", "slem", "tli"])
def test_greedy_is_what_generate_gives(pair: tuple[Any, Any], method: str, count: int) -> None:
    (model, tokenizer), draft = pair
    inputs = encoded(tokenizer, PROMPTS[:count])
    # one end token that the model does emit, so that rows end apart
    end = int(model.generate(**inputs, max_new_tokens=9, do_sample=False)[-1, -1])
    given = {**inputs, "max_new_tokens": 24, "do_sample": False, "eos_token_id": [end]}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drafter = anydraft.hf.speculative(draft, tokenizer=tokenizer, method=method)
    expected = model.generate(**given)
    drafted = 0
    for _ in range(2):
        assert torch.equal(model.generate(**given, custom_generate=drafter), expected)
        drafted += drafter.stats.num_draft_tokens  # auto may stop after the first run
    assert drafted > 0 or count == 1  # where that row ends at once
    assert drafter.stats.num_steps + drafter.stats.num_accepted_tokens >= count
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_rows_of_different_length_end_in_padding() -> None:
    model, tokenizer = tiny.llama()
    inputs = inputs_of(PROMPTS)
    plain = model.generate(**inputs, max_new_tokens=30, do_sample=False)
    width = inputs["input_ids"].shape[1]
    end = int(plain[0, width + 5])
    given = {**inputs, "max_new_tokens": 30, "do_sample": False, "eos_token_id": end, "pad_token_id": 7}
    drafter = anydraft.hf.speculative(tiny.gemma3(), tokenizer=tokenizer)
    out = model.generate(**given, custom_generate=drafter)
    assert torch.equal(out, model.generate(**given))
    assert (out[0, width + 6 :] == 7).all()


@pytest.mark.parametrize(
    "options", [{"repetition_penalty": 1.3}, {"min_new_tokens": 8, "eos_token_id": list(range(0, 380, 3))}]
)
def test_what_shapes_greedy_decoding_does_so(options: dict[str, Any]) -> None:
    model, tokenizer = tiny.llama()
    given = {**inputs_of(PROMPTS), "max_new_tokens": 16, "do_sample": False, **options}
    drafter = anydraft.hf.speculative(tiny.gemma3(), tokenizer=tokenizer)
    expected = model.generate(**given)
    assert torch.equal(model.generate(**given, custom_generate=drafter), expected)
    plain = (
        model.generate(**{**given, **dict.fromkeys(options)}, eos_token_id=given.get("eos_token_id"))
        if ("repetition_penalty" in options)
        else model.generate(**{**given, "min_new_tokens": None})
    )
    assert not torch.equal(plain, expected)


def test_stop_strings_of_a_criterion_and_of_the_option() -> None:
    model, tokenizer = tiny.llama()
    given = {**inputs_of(PROMPTS[:2]), "max_new_tokens": 24, "do_sample": False}
    text = tokenizer.decode(model.generate(**given)[0, given["input_ids"].shape[1] :])
    stop = text[6:9]
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, [stop])])
    expected = model.generate(**given, stopping_criteria=criteria)
    drafter = anydraft.hf.speculative(tiny.gemma3(), tokenizer=tokenizer)
    assert torch.equal(model.generate(**given, stopping_criteria=criteria, custom_generate=drafter), expected)
    drafter = anydraft.hf.speculative(tiny.gemma3(), tokenizer=tokenizer, stop_strings=stop)
    assert torch.equal(model.generate(**given, custom_generate=drafter), expected)
    assert expected.shape[1] < given["input_ids"].shape[1] + 24 or len(expected) == 2


def test_sampling_follows_torchs_seed_or_its_own() -> None:
    model, tokenizer = tiny.llama()
    given = {**inputs_of(PROMPTS), "max_new_tokens": 12, "do_sample": True, "top_k": 20, "temperature": 2.0}

    def draw(torchs: int, **options: Any) -> torch.Tensor:
        torch.manual_seed(torchs)
        drafter = anydraft.hf.speculative(tiny.gemma3(), tokenizer=tokenizer, **options)
        return model.generate(**given, custom_generate=drafter)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(draw(1, seed=5), draw(2, seed=5))


@pytest.mark.parametrize("last", [TopPLogitsWarper(0.8), MinPLogitsWarper(0.1)])
def test_processors_mean_the_same_probabilities(last: Any) -> None:
    processors = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.4), TemperatureLogitsWarper(0.7), TopKLogitsWarper(30), last]
    )
    torch.manual_seed(0)
    logits, prompt = 3 * torch.randn(1, 100), [3, 5, 90]
    expected = torch.softmax(processors(torch.tensor([prompt]), logits.clone()), dim=-1)
    params = SamplingParams(**sampling_options(processors, do_sample=True))
    ours = probabilities(logits, params, History(tuple(prompt), (), frozenset()))
    assert torch.allclose(ours, expected, atol=1e-6)


def test_a_streamer_gets_every_token(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = tiny.llama()
    given = {**inputs_of(PROMPTS[:1]), "max_new_tokens": 24, "do_sample": False}
    drafter = anydraft.hf.speculative(tiny.gemma3(), tokenizer=tokenizer)
    model.generate(**given, streamer=TextStreamer(tokenizer))
    expected = capsys.readouterr().out
    model.generate(**given, streamer=TextStreamer(tokenizer), custom_generate=drafter)
    assert capsys.readouterr().out == expected
    assert len(expected) > len(PROMPTS[0])


def test_a_dictionary_on_request() -> None:
    model, tokenizer = tiny.llama()
    given = {**inputs_of(PROMPTS), "max_new_tokens": 4, "do_sample": False}
    drafter = anydraft.hf.speculative(tiny.gemma3(), tokenizer=tokenizer)
    out = model.generate(**given, return_dict_in_generate=True, custom_generate=drafter)
    assert torch.equal(out.sequences, model.generate(**given))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor"),
        ({"bad_words_ids": [[5]]}, "NoBadWordsLogitsProcessor"),
        ({"prefix_allowed_tokens_fn": lambda b, ids: [1]}, "PrefixConstrainedLogitsProcessor"),
        ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
        ({"do_sample": True, "top_p": 0.5, "min_p": 0.1}, "top_p together with min_p"),
        ({"logits_processor": LogitsProcessorList([lambda ids, scores: scores])}, "processor function"),
        ({"do_sample": True, "logits_processor": LogitsProcessorList([TopPLogitsWarper(0.5)])}, "the order"),
        ({"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(9.0)])}, "MaxTimeCriteria"),
        ({"assistant_model": tiny.llama(seed=3)[0]}, "assistant_model"),
        ({"attention_mask": torch.tensor([[1, 1, 0, 0]])}, "not on the left"),
        ({"attention_mask": torch.tensor([[0, 0, 0, 0]])}, "nothing but padding"),
        ({"position_ids": torch.tensor([[4, 5, 6, 7]])}, "position_ids"),
        ({"max_new_tokens": 1000}, "made for 256"),
    ],
)
def test_what_would_be_ignored_is_refused(options: dict[str, Any], said: str) -> None:
    model, tokenizer = tiny.llama()
    ids = torch.tensor([[10, 20, 30, 40]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 4, **options}
    drafter = anydraft.hf.speculative(None, tokenizer=tokenizer, method="lookup")
    with pytest.raises(UsageError, match=said) as caught:
        model.generate(**given, custom_generate=drafter)
    assert "\n" not in str(caught.value)


def test_a_streamer_of_several_rows_and_a_missing_tokenizer_are_refused() -> None:
    class Silent(TextStreamer):
        def put(self, value: torch.Tensor) -> None:
            pass

    model, tokenizer = tiny.llama()
    drafter = anydraft.hf.speculative(None, tokenizer=tokenizer, method="lookup")
    config = GenerationConfig(max_new_tokens=4)
    with pytest.raises(UsageError, match="one row"):
        model.generate(
            **inputs_of(PROMPTS),
            generation_config=config,
            streamer=Silent(tokenizer),
            custom_generate=drafter,
        )
    with pytest.raises(UsageError, match="tokenizer"):
        anydraft.hf.speculative(None, tokenizer=None)
