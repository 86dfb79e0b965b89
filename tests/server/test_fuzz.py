"""Requests made from the API's own schema and from nonsense: clear errors, never a failure of the server."""

from __future__ import annotations

import json
import time
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.server.running import MODEL, PROMPT, Running, eventually

SECONDS, AT_LEAST = 8.0, 20
"""Requests are made for so long, but not fewer than so many."""
QUIET = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
}


def test_requests_by_the_schema(server: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models"} <= {o.path for o in operations}
    statuses = set().union(*(statuses_of(operation, server) for operation in operations))
    assert {200, 400} <= statuses
    assert eventually(server.is_idle)


def statuses_of(operation: Any, server: Running) -> set[int]:
    """What many requests that the operation's schema allows come back with; not one may be a failure."""
    end = time.monotonic() + SECONDS / 2
    statuses: list[int] = []

    @settings(max_examples=60, **QUIET)
    @given(operation.as_strategy(), st.booleans())
    def call(case: Any, right_model: bool) -> None:
        if time.monotonic() > end and len(statuses) >= AT_LEAST:
            return
        if right_model and isinstance(case.body, dict):
            case.body["model"] = MODEL
        response = case.call(base_url=server.url, timeout=60)
        statuses.append(response.status_code)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert set(response.json()) == {"error"}

    call()
    return set(statuses)


ODD: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [
    "n",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "seed",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "speculative",
    "echo",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "allowed_token_ids",
    "ignore_eos",
    "response_format",
    "prompt",
    "messages",
]


def test_odd_values_in_good_requests(server: Running) -> None:
    end = time.monotonic() + SECONDS
    count = 0
    chat = {"messages": [{"role": "user", "content": "hi"}]}

    @settings(max_examples=300, **QUIET)
    @given(st.sampled_from(["completions", "chat/completions"]), st.sampled_from(FIELDS), ODD)
    def call(path: str, name: str, value: Any) -> None:
        nonlocal count
        if time.monotonic() > end and count >= AT_LEAST:
            return
        count += 1
        good = {"model": MODEL, "max_tokens": 4, **(chat if path.startswith("chat") else {"prompt": PROMPT})}
        body = json.dumps({**good, name: value}).encode("utf-8", "replace")
        answer = server.http.post(f"/v1/{path}", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400, 429), answer.text

    call()
    assert eventually(server.is_idle)
    assert server.http.get("/health").status_code == 200
