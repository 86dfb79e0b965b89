"""The official client against a real server: what it gets is the engine's own, in OpenAI's shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from anydraft.engine import Engine
from anydraft.rules.params import SamplingParams
from tests import tiny
from tests.server.running import MODEL, PROMPT, Running, eventually

CHAT = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return server.client()


@pytest.fixture(autouse=True)
def _idle(server: Running) -> Iterator[None]:
    yield
    assert eventually(server.is_idle)


@pytest.fixture(scope="module")
def alone() -> Engine:
    return Engine(tiny.llama(), method="none", dtype="float32")


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 24, **options})


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "anydraft"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_is_the_targets_answer(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(messages=[CHAT], sampling_params=greedy())[0]
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=24, temperature=0)  # type: ignore[arg-type]
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == expected.finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.total_tokens == len(expected.prompt_token_ids) + len(expected.token_ids)
    assert answer.object == "chat.completion"


def test_content_in_parts_is_one_text(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Why is the "}, {"type": "text", "text": "sky blue?"}]
    answers = [
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": content}],  # type: ignore[list-item,misc]
            max_completion_tokens=9,
            temperature=0,
        )
        .choices[0]
        .message.content
        for content in (parts, "Why is the sky blue?")
    ]
    assert answers[0] == answers[1]


def test_a_completion_of_text_and_of_ids(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(PROMPT, greedy())[0]
    for prompt in (PROMPT, list(expected.prompt_token_ids)):
        done = client.completions.create(model=MODEL, prompt=prompt, max_tokens=24, temperature=0)
        assert done.choices[0].text == expected.text
    several = client.completions.create(
        model=MODEL, prompt=[PROMPT, "größer", PROMPT], max_tokens=24, temperature=0, echo=True
    )
    texts = [c.text for c in several.choices]
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert texts[0] == texts[2] == PROMPT + expected.text
    assert texts[1] == "größer" + alone.generate("größer", greedy())[0].text


def test_a_chat_stream_has_openais_chunks(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(messages=[CHAT], sampling_params=greedy())[0]
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=CHAT,  # type: ignore[arg-type]
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == expected.text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(expected.token_ids)
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1
    assert {c.object for c in chunks} == {"chat.completion.chunk"}


def test_the_bytes_of_a_stream(server: Running) -> None:
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "temperature": 0, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=fields) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = list(response.iter_lines())
    assert lines[1::2] == [""] * (len(lines) // 2)
    assert lines[-2] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2:2]]
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert "usage" not in chunks[0]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_completion_stream_of_several_choices(client: openai.OpenAI, alone: Engine) -> None:
    texts = {0: "", 1: "", 2: "", 3: ""}
    stream = client.completions.create(
        model=MODEL, prompt=[PROMPT, "Eins zwei"], n=2, max_tokens=16, seed=5, temperature=0.9, stream=True
    )
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    params = [SamplingParams(temperature=0.9, max_tokens=16, seed=5 + i) for i in (0, 1)] * 2
    # Greedy drafts (slem) are verified by the target's own draws: the text is AR's of the same seed.
    expected = alone.generate([PROMPT, PROMPT, "Eins zwei", "Eins zwei"], params)
    assert list(texts.values()) == [r.text for r in expected]


def test_n_choices_are_n_draws(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": CHAT, "max_tokens": 12, "n": 3, "seed": 7}
    first = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    again = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    texts = [c.message.content for c in first.choices]
    assert texts == [c.message.content for c in again.choices]
    assert len(set(texts)) == 3
    assert first.usage.completion_tokens == sum(12 for _ in range(3))
    single = client.chat.completions.create(**{**ask, "n": 1, "seed": 9})  # type: ignore[call-overload]
    assert single.choices[0].message.content == texts[2]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text(client: openai.OpenAI, alone: Engine, stream: bool) -> None:
    whole = alone.generate(PROMPT, greedy())[0].text
    stop = whole[8:10]
    made = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stop=[stop, "never"], stream=stream
    )
    if stream:
        chunks = list(made)  # type: ignore[arg-type]
        text, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        text, reason = made.choices[0].text, made.choices[0].finish_reason  # type: ignore[union-attr]
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_penalties_and_bias_shape_the_text(client: openai.OpenAI, alone: Engine) -> None:
    for fields in (
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"logit_bias": {"100": 50.0}},
        {"extra_body": {"repetition_penalty": 1.7, "min_tokens": 10}},
    ):
        given = {**fields, **fields.get("extra_body", {})}  # type: ignore[dict-item]
        given.pop("extra_body", None)
        if "logit_bias" in given:
            given["logit_bias"] = {100: 50.0}
        expected = alone.generate(PROMPT, greedy(**given))[0]
        made = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, **fields)  # type: ignore[call-overload]
        assert made.choices[0].text == expected.text != alone.generate(PROMPT, greedy())[0].text


def test_chat_logprobs(client: openai.OpenAI, alone: Engine) -> None:
    expected = alone.generate(messages=[CHAT], sampling_params=greedy(logprobs=3))[0]
    ask = {"model": MODEL, "messages": CHAT, "max_tokens": 24, "temperature": 0, "logprobs": True}
    answer = client.chat.completions.create(**ask, top_logprobs=3)  # type: ignore[call-overload]
    content = answer.choices[0].logprobs.content
    assert len(content) == len(expected.token_ids)
    vocabulary = alone.pair.target_vocabulary
    for entry, token_id, own in zip(content, expected.token_ids, expected.logprobs or (), strict=True):
        assert bytes(entry.bytes) == vocabulary.bytes_of([token_id])
        assert entry.logprob == pytest.approx(own[token_id].logprob, abs=1e-4)
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == max(t.logprob for t in entry.top_logprobs)
    streamed = [
        entry
        for chunk in client.chat.completions.create(**ask, top_logprobs=3, stream=True)  # type: ignore[call-overload]
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [e.bytes for e in streamed] == [e.bytes for e in content]
    own_only = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    assert all(e.top_logprobs == [] for e in own_only.choices[0].logprobs.content)


def test_completion_logprobs(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 20, "seed": 3, "logprobs": 2}
    made = client.completions.create(**ask)  # type: ignore[call-overload]
    shape = made.choices[0].logprobs
    assert len(shape.tokens) == len(shape.token_logprobs) == len(shape.top_logprobs) == len(shape.text_offset)
    for token, own, top, at in zip(
        shape.tokens, shape.token_logprobs, shape.top_logprobs, shape.text_offset, strict=True
    ):
        assert 2 <= len(top) <= 3
        assert top[token] == own
        if not token.startswith("bytes:"):
            # One more character: a random model may leave the one before it incomplete, which then shows here.
            assert token in made.choices[0].text[at : at + len(token) + 1]
    streamed = [
        token
        for chunk in client.completions.create(**ask, stream=True)  # type: ignore[call-overload]
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.tokens
    ]
    assert streamed == shape.tokens


def test_a_request_chooses_its_method(client: openai.OpenAI) -> None:
    texts = set()
    for method in ("auto", "tli", "slem", "slrs", "lookup", "none"):
        wanted = {"method": method, **({"num_speculative_tokens": 3} if method != "none" else {})}
        answer = client.chat.completions.create(
            model=MODEL,
            messages=CHAT,  # type: ignore[arg-type]
            max_tokens=24,
            temperature=0,
            extra_body={"speculative": wanted},
        )
        metrics = answer.metrics["speculative_decoding"]  # type: ignore[attr-defined]
        assert metrics["method"].partition("(")[0] == method
        assert metrics["num_spec_tokens"] <= 3
        assert (metrics["num_draft_tokens"] == 0) == (method == "none") or method in ("lookup", "auto")
        texts.add(answer.choices[0].message.content)
    assert len(texts) == 1
    for wrong in ({"method": "magic"}, {"method": "standard"}, {"num_speculative_tokens": 0}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=CHAT, extra_body={"speculative": wrong})  # type: ignore[arg-type]
        assert caught.value.param == "speculative"


def test_metrics_have_vllms_fields(server: Running) -> None:
    made = server.post("completions", prompt=PROMPT, max_tokens=30, temperature=0, ignore_eos=True).json()
    metrics = made["metrics"]["speculative_decoding"]
    assert sum(metrics["acceptance_histogram"]) == metrics["num_spec_steps"] > 0
    accepted = sum(n * steps for n, steps in enumerate(metrics["acceptance_histogram"]))
    assert accepted == metrics["num_accepted_draft_tokens"]
    assert metrics["mean_acceptance_length"] == pytest.approx(1 + accepted / metrics["num_spec_steps"])
    assert metrics["draft_acceptance_rate"] == pytest.approx(accepted / metrics["num_draft_tokens"])
    assert metrics["num_spec_tokens"] == 5
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json={**fields, "stream": True}) as response:
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_draft_tokens"] == metrics["num_draft_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_where_each_token_came_from(server: Running, stream: bool) -> None:
    fields = {
        "model": MODEL,
        "messages": CHAT,
        "max_tokens": 30,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
        "speculative": {"return_tokens": True},
    }
    if stream:
        with server.http.stream("POST", "/v1/chat/completions", json=fields) as response:
            chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        told = [c["choices"][0]["speculative"] for c in chunks if "speculative" in c["choices"][0]]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    else:
        choice = server.post("chat/completions", **fields).json()["choices"][0]
        told, text = [choice["speculative"]], choice["message"]["content"]
    tokens = [token for each in told for token in each["tokens"]]
    assert "".join(token["text"] for token in tokens) == text
    assert {t["source"] for t in tokens} <= {"accepted", "corrected", "bonus", "target", "lookup"}
    assert told[-1]["num_tokens"] == 30
    assert told[-1]["acceptance_length"] == pytest.approx(30 / told[-1]["num_steps"], abs=1)
    plain = server.post("chat/completions", **{**fields, "stream": False, "speculative": {}}).json()
    assert "speculative" not in plain["choices"][0]


def test_unknown_fields_are_ignored(server: Running) -> None:
    answer = server.post(
        "chat/completions", messages=CHAT, max_tokens=2, user="x", store=True, frobnicate=[1], top_p=None
    )
    assert answer.status_code == 200


def test_logprobs_are_finite_json(server: Running) -> None:
    made = server.post("completions", prompt=PROMPT, max_tokens=4, logprobs=20, temperature=0).json()
    values = made["choices"][0]["logprobs"]["token_logprobs"]
    assert all(math.isfinite(v) and v <= 0 for v in values)
