from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anydraft.errors import UsageError
from anydraft.rules.params import SamplingParams
from anydraft.rules.sampling import History, greedy_ids, probabilities, token_logprobs

SIZE = 7


def naive_row(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int], stops: set[int]
) -> list[float]:
    """One position, straight from vLLM's documentation of each parameter."""
    counts = Counter(output)
    scores = []
    for i, score in enumerate(logits):
        if params.allowed_token_ids is not None and i not in params.allowed_token_ids:
            score = -math.inf
        score += (params.logit_bias or {}).get(i, 0.0)
        if i in stops and len(output) < params.min_tokens:
            score = -math.inf
        if i in prompt or i in output:
            score = score / params.repetition_penalty if score > 0 else score * params.repetition_penalty
        score -= params.frequency_penalty * counts[i] + params.presence_penalty * (counts[i] > 0)
        scores.append(score / params.temperature)
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    weights = [w if w >= params.min_p else 0.0 for w in weights]
    if params.top_k > 0:
        edge = sorted(weights)[-params.top_k :][0]
        weights = [w if w >= edge else 0.0 for w in weights]
    total = sum(weights)
    p = [w / total for w in weights]
    kept: list[float] = []
    for value in sorted(p, reverse=True):
        if sum(kept) >= params.top_p:
            break
        kept.append(value)
    p = [v if v >= kept[-1] else 0.0 for v in p]
    return [v / sum(p) for v in p]


finite = st.integers(-24, 24).map(lambda n: n / 4)  # a grid: no differences that float64 can hardly tell
ids = st.lists(st.integers(0, SIZE - 1), max_size=5)
some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.sampled_from([-1, 0, 1, 3, 6, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.45, 0.05]),
    min_p=st.sampled_from([0.0, 0.1, 0.6]),
    repetition_penalty=st.sampled_from([1.0, 1.4, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.9, -1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.6]),
    logit_bias=st.sampled_from([None, {2: 3.0, 4: -100.0}]),
    allowed_token_ids=st.sampled_from([None, [0, 2, 3, 5, 6]]),
    min_tokens=st.integers(0, 4),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(finite, min_size=SIZE, max_size=SIZE), min_size=1, max_size=4),
    some_params,
    ids,
    ids,
    ids,
)
def test_each_position_is_processed_with_its_own_history(
    logits: list[list[float]],
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    drafted: list[int],
) -> None:
    proposal = [*drafted, 1, 2, 3][: len(logits) - 1]
    rows = torch.tensor(logits, dtype=torch.float64)
    before = rows.clone()
    p = probabilities(rows, params, History(prompt, output, {0, 6}), proposal)
    assert torch.equal(rows, before)
    for i, row in enumerate(logits):
        expected = naive_row(row, params, prompt, output + proposal[:i], {0, 6})
        assert p[i].tolist() == pytest.approx(expected, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(finite, min_size=SIZE, max_size=SIZE), min_size=1, max_size=3), some_params, ids)
def test_greedy_ids_are_the_argmax_of_p(
    logits: list[list[float]], params: SamplingParams, output: list[int]
) -> None:
    rows = torch.tensor(logits, dtype=torch.float64)
    history = History([], output, {0})
    hot = SamplingParams(
        temperature=0.0,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=params.logit_bias,
        min_tokens=params.min_tokens,
    )
    p = probabilities(rows, hot, history, [1, 2])
    assert p.sum(dim=-1).tolist() == [1.0] * len(rows)
    assert greedy_ids(rows, hot, history, [1, 2]) == p.argmax(dim=-1).tolist()


def test_an_exact_tie_goes_to_the_lowest_id() -> None:
    rows = torch.zeros(2, 100, dtype=torch.bfloat16)
    rows[1, [40, 30]] = 1.0
    assert greedy_ids(rows, SamplingParams(temperature=0), History()) == [0, 30]


def test_without_processors_nothing_is_copied_and_float32_stays() -> None:
    rows = torch.randn(2, 50)
    p = probabilities(rows, SamplingParams(), History())
    assert p.dtype == torch.float32
    assert torch.equal(p, torch.softmax(rows, dim=-1))
    assert probabilities(rows.bfloat16(), SamplingParams(), History()).dtype == torch.float32
    assert probabilities(rows.double(), SamplingParams(temperature=0), History()).dtype == torch.float64


def test_ids_that_the_target_lacks_are_refused() -> None:
    with pytest.raises(UsageError, match="logit_bias names id 9, but the target has 7 ids"):
        probabilities(torch.zeros(1, SIZE), SamplingParams(logit_bias={9: 1.0}), History())


def test_bans_that_leave_nothing_are_refused() -> None:
    params = SamplingParams(allowed_token_ids=[3], min_tokens=1)
    with pytest.raises(UsageError, match="ban every token"):
        probabilities(torch.zeros(1, SIZE), params, History(stop_ids={3}))
    probabilities(torch.zeros(1, SIZE), params, History(output_ids=[1], stop_ids={3}))


def test_logprobs_are_of_the_raw_logits() -> None:
    rows = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 0.0, 0.0, 0.0]])
    first, second = token_logprobs(rows, [2, 0], 2)
    expected = torch.log_softmax(rows.double(), dim=-1)
    assert first.token_id == 2
    assert first.rank == 3
    assert first.logprob == pytest.approx(float(expected[0, 2]), abs=1e-6)
    assert [i for i, _ in first.top] == [1, 3]
    assert first.top[1][1] == pytest.approx(float(expected[0, 3]), abs=1e-6)
    assert second.rank == 1
    assert token_logprobs(rows, [2], 0)[0].top == ()
