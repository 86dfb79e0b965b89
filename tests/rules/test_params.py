from __future__ import annotations

import pytest

from anydraft.errors import UsageError
from anydraft.rules.params import SamplingParams


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (
        16,
        1.0,
        1.0,
        0,
        0.0,
    )
    assert not params.greedy
    assert not params.has_penalties
    assert params.stop_strings == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": -0.1}, "temperature=-0.1 must be a number of at least 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"temperature": True}, "temperature=True"),
        ({"top_p": 0.0}, "top_p=0.0 must be between 0 (excluded) and 1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_k": -2}, "top_k=-2 must be a whole number of at least -1"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"min_p": 2}, "min_p=2"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be a number above 0"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5 must be between -2 and 2"),
        ({"frequency_penalty": -3}, "frequency_penalty=-3"),
        ({"max_tokens": 0}, "max_tokens=0 must be a whole number of at least 1"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens=4 is more than max_tokens=3"),
        ({"seed": 0.5}, "seed=0.5 must be a whole number"),
        ({"logprobs": -1}, "logprobs=-1"),
        ({"logit_bias": {-1: 1.0}}, "a token id of logit_bias=-1"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias[1]=inf must be a finite number"),
        ({"logit_bias": [1]}, "logit_bias=[1] must be a mapping"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": 7}, "allowed_token_ids=7 must be a list"),
        ({"stop_token_ids": ["x"]}, "a member of stop_token_ids='x'"),
        ({"min_tokens": 1, "allowed_token_ids": [3], "stop_token_ids": [3, 4]}, "bans every one"),
        ({"stop": [""]}, "empty string"),
        ({"stop": 5}, "stop=5 must be a string or a list of strings"),
        ({"draft_temperature": -1}, "draft_temperature=-1"),
    ],
)
def test_bad_values_are_refused_with_what_was_given(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**given)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_greedy_is_a_temperature_of_nothing() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=1e-6).greedy
    assert not SamplingParams(temperature=1e-4).greedy


def test_one_stop_string_or_several() -> None:
    assert SamplingParams(stop="\n\n").stop_strings == ("\n\n",)
    assert SamplingParams(stop=["a", "b"], max_tokens=None).stop_strings == ("a", "b")
