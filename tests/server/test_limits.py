"""Doors and limits: who may call, how much, and what a refusal looks like."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import openai
import pytest

from anydraft.errors import UsageError
from anydraft.server.settings import ServerSettings
from tests.server.running import MODEL, PROMPT, Running, eventually, running, tiny_engine

JSON = {"content-type": "application/json"}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, which must have ``status`` and OpenAI's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": -1}, "temperature", "0"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 129}, "n", "128"),
        ({"n": 100}, "n", "68"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"max_tokens": 10**30}, "max_tokens", "less than"),
        ({"max_tokens": 100_000}, "max_tokens", "ask for fewer"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"presence_penalty": 3}, "presence_penalty", "2"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "100"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "integer"),
        ({"logit_bias": {"123456": 1}}, None, "123456"),
        ({"seed": 10**25}, "seed", "less than"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": ["x"] * 65}, "stop", "64"),
        ({"stop": 5}, "stop", "list"),
        ({"best_of": 2}, "best_of", "best_of=2"),
        ({"suffix": "}"}, "suffix", "not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "json_object"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"echo": True, "logprobs": 1}, "echo", "echo with logprobs"),
        ({"min_tokens": 5, "max_tokens": 3}, None, "min_tokens"),
        ({"allowed_token_ids": []}, None, "allowed_token_ids"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [[1, 2], []]}, "prompt", "empty"),
        ({"prompt": [1, 10**6]}, "prompt", "1000000"),
        ({"prompt": [1, -1]}, "prompt", "list of token ids"),
        ({"prompt": [True]}, "prompt", "list of token ids"),
        ({"prompt": "a\ud800b"}, "prompt", "surrogate"),
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": "fox " * 400}, "prompt", "shorten"),
        ({"prompt": "x" * 1_000_000}, "prompt", "1000000 tokens"),
    ],
)
def test_absurd_parameters(server: Running, fields: dict[str, Any], param: str | None, said: str) -> None:
    body = json.dumps({"model": MODEL, "prompt": PROMPT, **fields})
    for stream in (False, True):
        if "stream_options" in fields and stream:
            continue
        sent = json.dumps({**json.loads(body), "stream": stream})
        error = error_of(server.http.post("/v1/completions", content=sent, headers=JSON), 400)
        assert error["param"] == param
        assert said in error["message"]
        assert error["type"] == "invalid_request_error"
    assert eventually(server.is_idle)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least 1"),
        ("hello", "list"),
        ([{"role": "user"}], "no content"),
        ([{"content": "x"}], "required"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "image_url"),
        ([{"role": "user", "content": "\udc00"}], "surrogate"),
    ],
)
def test_malformed_messages(server: Running, messages: Any, said: str) -> None:
    body = json.dumps({"model": MODEL, "messages": messages})
    error = error_of(server.http.post("/v1/chat/completions", content=body, headers=JSON), 400)
    assert error["param"] == "messages"
    assert said in error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b'{"a":' * 50_000]
)
def test_malformed_json(server: Running, body: bytes) -> None:
    error = error_of(server.http.post("/v1/completions", content=body, headers=JSON), 400)
    assert error["type"] == "invalid_request_error"


def test_nan_is_no_number(server: Running) -> None:
    body = b'{"model": "tiny/llama", "prompt": "x", "temperature": NaN}'
    assert (
        error_of(server.http.post("/v1/completions", content=body, headers=JSON), 400)["param"]
        == "temperature"
    )


def test_where_there_is_nothing(server: Running) -> None:
    assert error_of(server.http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(server.http.get("/v1/completions"), 405)["code"] == "method_not_allowed"
    error = error_of(server.post("completions", model="gpt-9", prompt="x"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_a_request_may_leave_out_the_model(server: Running) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    assert answer.status_code == 200
    assert answer.json()["model"] == server.http.get("/v1/models").json()["data"][0]["id"]


def test_a_body_that_does_not_say_json(server: Running) -> None:
    """A page elsewhere can post text without asking; it must not reach the engine."""
    body = json.dumps({"model": MODEL, "prompt": "x"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = server.http.post("/v1/completions", content=body, headers={"content-type": kind})
        assert "application/json" in error_of(answer, 415)["message"]
    assert server.http.post("/v1/completions", content=body, headers=JSON).status_code == 200


def test_large_bodies() -> None:
    with running(max_body_bytes=10_000) as server:
        body = json.dumps({"model": MODEL, "prompt": "x" * 3_000_000}).encode()
        assert (
            "10000"
            in error_of(server.http.post("/v1/completions", content=body, headers=JSON), 413)["message"]
        )
        chunks = (body[i : i + 65_536] for i in range(0, len(body), 65_536))
        assert (
            "10000"
            in error_of(server.http.post("/v1/completions", content=chunks, headers=JSON), 413)["message"]
        )
        assert server.post("completions", prompt="x", max_tokens=1).status_code == 200


def test_an_api_key_closes_v1() -> None:
    with running(api_keys=("sesame", "second")) as server:
        for key in (None, "wrong", "-", "sesam", "sesame1"):
            headers = {"authorization": f"Bearer {key}"} if key is not None else {}
            error = error_of(server.http.get("/v1/models", headers=headers), 401)
            assert error["code"] == "invalid_api_key"
            answer = server.http.post(
                "/v1/completions", json={"model": MODEL, "prompt": "x"}, headers=headers
            )
            error_of(answer, 401)
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        for key in ("sesame", "second"):
            assert server.client(api_key=key).models.list().data[0].id == MODEL
        for path in ("/", "/health", "/ready", "/metrics"):
            assert server.http.get(path).status_code == 200


def test_browsers_of_other_origins() -> None:
    def preflight(server: Running, origin: str) -> httpx.Response:
        headers = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,authorization",
        }
        return server.http.options("/v1/chat/completions", headers=headers)

    with running(allowed_origins=("https://app.example",), api_keys=("k",)) as server:
        assert (
            preflight(server, "https://app.example").headers["access-control-allow-origin"]
            == "https://app.example"
        )
        assert "access-control-allow-origin" not in preflight(server, "https://evil.example").headers
        refused = server.http.get("/v1/models", headers={"origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example", (
            "else no page can read it"
        )
    with running() as server:
        assert preflight(server, "https://app.example").status_code == 405


def test_limits_of_tokens() -> None:
    with running(max_prompt_tokens=10, max_output_tokens=20) as server:
        error = error_of(server.post("completions", prompt="fox " * 30), 400)
        assert error["code"] == "context_length_exceeded"
        error = error_of(server.post("completions", prompt="fox", max_tokens=21), 400)
        assert (error["param"], error["code"]) == ("max_tokens", None)
        made = server.post("completions", prompt="fox", max_tokens=20, ignore_eos=True)
        assert made.json()["usage"]["completion_tokens"] == 20


def test_a_chat_without_a_limit_ends_where_the_server_says() -> None:
    with running(max_output_tokens=8) as server:
        chat = [{"role": "user", "content": "hi"}]
        made = server.post("chat/completions", messages=chat, ignore_eos=True, temperature=0).json()
        assert made["usage"]["completion_tokens"] == 8
        assert made["choices"][0]["finish_reason"] == "length"
        error = error_of(server.post("chat/completions", messages=chat, max_completion_tokens=9), 400)
        assert error["param"] == "max_completion_tokens"


def test_a_full_server_says_429_and_recovers() -> None:
    engine = tiny_engine(max_num_seqs=1)
    step, may_go = engine.core.step, threading.Event()
    engine.core.step = lambda: (may_go.wait(60), step())[1]  # type: ignore[method-assign]
    with running(engine, max_queue=2) as server:
        answers: list[int] = []

        def ask(**fields: Any) -> None:
            answers.append(server.post("completions", prompt=PROMPT, max_tokens=2, **fields).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: server.service.num_held == 3)
        refused = server.post("completions", prompt=PROMPT)
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"] == "1"
        with pytest.raises(openai.RateLimitError):
            server.client().completions.create(model=MODEL, prompt=PROMPT)
        assert "4 choices" in error_of(server.post("completions", prompt=PROMPT, n=4), 400)["message"]
        may_go.set()
        for thread in threads:
            thread.join()
        assert answers == [200, 200, 200]
        assert eventually(server.is_idle)
        assert server.post("completions", prompt=PROMPT, n=3, max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_queue": -1},
        {"request_timeout": 0},
        {"shutdown_timeout": -1},
        {"max_body_bytes": 0},
        {"max_output_tokens": 0},
        {"api_keys": ("",)},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ServerSettings(model_name="x", **wrong)
