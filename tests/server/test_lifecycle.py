"""What goes wrong in the life of a server: clients that leave, dawdle or wait, steps that fail, a stop."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from anydraft.server.protocol import CompletionRequest
from anydraft.server.respond import GenerationResponse
from anydraft.server.service import Service
from anydraft.server.settings import ServerSettings
from tests.server.running import MODEL, PROMPT, Running, eventually, running, tiny_engine

LONG = {"model": MODEL, "prompt": PROMPT, "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def slow_engine(seconds: float = 0.02, **options: Any) -> Any:
    """An engine whose steps take a while."""
    engine = tiny_engine(**options)
    step = engine.core.step
    engine.core.step = lambda: (time.sleep(seconds), step())[1]  # type: ignore[method-assign]
    return engine


def connect(server: Running, fields: dict[str, Any]) -> socket.socket:
    """A raw connection that has sent a request."""
    body = json.dumps(fields).encode()
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return raw


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_row_at_once(stream: bool) -> None:
    with running(slow_engine()) as server:
        raw = connect(server, {**LONG, "stream": stream, "n": 3})
        assert eventually(lambda: server.engine.core.num_running == 3)
        raw.close()
        assert eventually(server.is_idle)
        assert server.metric("vllm:generation_tokens_total") < 3 * 200, "it did not run to its end"
        assert server.metric("vllm:request_success_total") == 3
        assert 'finished_reason="abort"' in server.http.get("/metrics").text


def test_a_client_that_leaves_the_queue() -> None:
    with running(slow_engine(max_num_seqs=1)) as server:
        first = connect(server, LONG)
        assert eventually(lambda: server.engine.core.num_running == 1)
        second = connect(server, LONG)
        assert eventually(lambda: server.engine.core.num_waiting == 1)
        second.close()
        assert eventually(lambda: server.engine.core.num_waiting == 0)
        assert eventually(lambda: server.service.num_held == 1)
        first.close()
        assert eventually(server.is_idle)


def test_a_request_that_takes_too_long() -> None:
    with running(slow_engine(0.1), request_timeout=2.0) as server:
        answer = server.http.post("/v1/completions", json=LONG)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        assert eventually(server.is_idle)
        with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert len(lines) > 2, "some text came before"
        assert json.loads(lines[-2][6:])["error"]["type"] == "timeout_error"
        assert lines[-1] == "data: [DONE]"
        assert eventually(server.is_idle)


def test_a_slow_reader_costs_no_row_and_holds_up_nobody() -> None:
    """Its output waits for it while others are served."""
    with running() as server:
        readers = [connect(server, {**LONG, "stream": True, "logprobs": 20}) for _ in range(4)]
        assert eventually(lambda: server.engine.core.num_running == 4)
        assert server.post("completions", **{**LONG, "max_tokens": 5}).status_code == 200
        assert eventually(server.is_idle), "their rows and places are free, though nobody read a byte"
        assert server.metric("vllm:generation_tokens_total") == 4 * 200 + 5
        for raw in readers:
            raw.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("writes", [0, 1])
def test_a_reader_that_never_reads_is_let_go_when_its_time_is_up(stream: bool, writes: int) -> None:
    async def let_go() -> int:
        service = Service(tiny_engine(), ServerSettings(model_name=MODEL, request_timeout=0.5))
        service.start()
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) > writes:
                await asyncio.sleep(600)

        async def receive() -> Any:
            await asyncio.sleep(600)

        request = CompletionRequest.model_validate({**LONG, "max_tokens": 5, "stream": stream})
        await asyncio.wait_for(GenerationResponse(service, request)({"type": "http"}, receive, send), 30)
        assert [m["type"] for m in sent].count("http.response.start") == 1
        await service.stop()
        return service.num_held

    assert asyncio.run(let_go()) == 0


def test_a_step_that_fails_ends_its_requests_and_nothing_else() -> None:
    engine = tiny_engine()
    step, fails = engine.core.step, [True]

    def sometimes() -> Any:
        if fails and engine.core.num_running:
            fails.clear()
            raise RuntimeError("a broken step")
        return step()

    engine.core.step = sometimes  # type: ignore[method-assign]
    expected = tiny_engine(method="none").generate(PROMPT, _greedy(16))[0]
    with running(engine) as server:
        answer = server.http.post("/v1/completions", json={**LONG, "n": 3})
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "internal_error")
        assert "broken step" not in answer.text
        assert eventually(server.is_idle)
        assert server.http.get("/health").status_code == 200
        assert server.metric("anydraft:step_failures_total") == 1
        made = server.post("completions", **{**LONG, "max_tokens": 16}).json()
        assert made["choices"][0]["text"] == expected.text


def test_a_step_that_fails_in_the_middle_of_a_stream() -> None:
    engine = tiny_engine()
    step, count = engine.core.step, [0]

    def third() -> Any:
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("a broken step")
        return step()

    engine.core.step = third  # type: ignore[method-assign]
    with running(engine) as server:
        with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert response.status_code == 200
        assert json.loads(lines[-2][6:])["error"]["type"] == "server_error"
        assert lines[-1] == "data: [DONE]"


def test_an_engine_that_always_fails_is_unhealthy() -> None:
    engine = tiny_engine()

    def never() -> Any:
        raise RuntimeError("a broken engine")

    engine.core.step = never  # type: ignore[method-assign]
    with running(engine) as server:
        for _ in range(3):
            assert server.http.get("/health").status_code == server.http.get("/ready").status_code == 200
            assert server.post("completions", prompt=PROMPT).status_code == 500
        assert eventually(lambda: server.http.get("/health").status_code == 503)
        assert server.http.get("/ready").status_code == 503
        assert server.post("completions", prompt=PROMPT).status_code == 500


def test_an_engine_thread_that_dies_fails_its_requests() -> None:
    engine = tiny_engine()

    def dies() -> Any:
        raise SystemExit

    engine.core.step = dies  # type: ignore[method-assign]
    with running(engine) as server:
        assert server.post("completions", prompt=PROMPT).status_code == 500
        assert server.http.get("/health").status_code == 503
        assert server.post("completions", prompt=PROMPT).status_code == 500
        assert eventually(lambda: server.service.num_held == 0)


def read_stream(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


@pytest.mark.parametrize(("patience", "reason"), [(60.0, "length"), (0.3, "abort")])
def test_a_stop_finishes_or_ends_streams(patience: float, reason: str) -> None:
    with running(slow_engine(), shutdown_timeout=patience) as server:
        fields = {**LONG, "max_tokens": 60, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=fields) as response:
            chunks = read_stream(response)
            first = next(chunks)
            server.server.should_exit = True
            with httpx.Client(base_url=server.url) as other:
                assert eventually(lambda: other.get("/ready").status_code == 503)
                assert other.get("/health").status_code == 200
                refused = other.post("/v1/completions", json=LONG)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "shutting_down"
            rest = list(chunks)
        assert rest[-1]["choices"][0]["finish_reason"] == reason
        text = "".join(c["choices"][0]["text"] for c in (first, *rest))
        whole = tiny_engine(method="none").generate(PROMPT, _greedy(60))[0].text
        assert text == whole if reason == "length" else whole.startswith(text)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/ready")


def _greedy(max_tokens: int) -> Any:
    from anydraft.rules.params import SamplingParams

    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def test_32_streams_with_disconnects_are_the_targets_text() -> None:
    """Every finished text is AR's; whatever left in between leaves no row, no place and no text behind."""
    prompts = [f"{PROMPT} {i % 7} fib({i % 5})" for i in range(32)]
    lengths = [10 + 7 * (i % 6) for i in range(32)]
    alone = tiny_engine(method="none").generate(prompts, [_greedy(n) for n in lengths])
    methods = ["slem", "auto", "none", "tli", "lookup"]
    with running(tiny_engine(max_num_seqs=8), max_queue=64) as server:

        async def one(client: httpx.AsyncClient, i: int) -> str | None:
            fields = {
                **LONG,
                "prompt": prompts[i],
                "max_tokens": lengths[i],
                "stream": True,
                "speculative": {"method": methods[i % len(methods)]},
            }
            text, leave_after = "", 2 if i % 4 == 3 else None
            async with client.stream("POST", "/v1/completions", json=fields) as response:
                seen = 0
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["text"]
                        seen += 1
                        if seen == leave_after:
                            return None
            return text

        async def everyone() -> list[str | None]:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                return await asyncio.gather(*(one(client, i) for i in range(32)))

        texts = asyncio.run(everyone())
        assert eventually(server.is_idle)
    for i, text in enumerate(texts):
        assert text == (None if i % 4 == 3 else alone[i].text)


def test_many_threads_of_the_official_client() -> None:
    with running(tiny_engine(max_num_seqs=2)) as server:
        client, texts = server.client(), []

        def ask() -> None:
            made = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=10, temperature=0)
            texts.append(made.choices[0].text)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(texts) == 8
        assert len(set(texts)) == 1
