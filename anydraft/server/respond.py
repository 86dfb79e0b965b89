"""One generation as an ASGI response: whole or streamed, until it ends, the client leaves or time is up."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anydraft.engine.outputs import GenerationResult, RequestStats
from anydraft.engine.pieces import Pieces
from anydraft.errors import AnyDraftError
from anydraft.server.errors import ApiError, internal_error
from anydraft.server.formats import (
    ChatFormat,
    CompletionFormat,
    Format,
    Json,
    Part,
    TokenNames,
    speculative_metrics,
    usage,
)
from anydraft.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from anydraft.server.service import Call, Plan, Service

logger = logging.getLogger(__name__)

_LAST_WORDS = 1.0
"""Seconds that a client whose time is up may take to read that it is."""


class GenerationResponse(Response):
    """Runs a request while its client listens."""

    def __init__(self, service: Service, request: GenerationRequest) -> None:
        super().__init__()
        self._service = service
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        work = asyncio.create_task(self._work(reply))
        gone = asyncio.create_task(_disconnected(receive))
        timeout = self._service.settings.request_timeout
        try:
            await asyncio.wait({work, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not gone.done():
                work.cancel()
                await asyncio.wait({work})
                message = (
                    f"The request took longer than {timeout:g} seconds, this server's limit; it was ended."
                )
                with_code = ApiError(504, message, code="timeout")
                await asyncio.wait_for(reply.fail(with_code), _LAST_WORDS)
        except TimeoutError:
            logger.info("a client did not read its response; its connection is closed")
        finally:
            for task in (work, gone):
                task.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _work(self, reply: _Reply) -> None:
        try:
            await self._generate(reply)
        except ApiError as error:
            await reply.fail(error)
        except OSError:
            logger.info("a client left while it was written to")
        except Exception:
            logger.exception("a request failed")
            await reply.fail(internal_error())

    async def _generate(self, reply: _Reply) -> None:
        request = self._request
        with self._service.hold(len(request.items) * request.n) as call:
            plan = await self._service.plan(request)
            try:
                params = [
                    request.sampling_params(choice, max_tokens)
                    for max_tokens in plan.max_tokens
                    for choice in range(request.n)
                ]
            except AnyDraftError as error:
                raise ApiError(400, str(error)) from error
            call.submit(plan, params)
            run = _Run(self._service, request, plan, call)
            if request.stream:
                await self._stream(run, reply)
            else:
                await reply.whole(await run.body())

    async def _stream(self, run: _Run, reply: _Reply) -> None:
        async for chunk in run.chunks():
            await reply.event(chunk)
        await reply.done()


class _Run:
    """The parts of one call on their way into a format."""

    def __init__(self, service: Service, request: GenerationRequest, plan: Plan, call: Call) -> None:
        self._request = request
        self._plan = plan
        self._call = call
        self._vocabulary = service.engine.pair.target_vocabulary
        self._format = _format(service, request, plan)
        self._results: list[GenerationResult] = []

    async def body(self) -> Json:
        parts: list[list[Part]] = [[] for _ in range(len(self._plan.prompts) * self._request.n)]
        async for part in self._parts():
            parts[part.choice].append(part)
        return self._format.body(parts, self._usage(), self._metrics())

    async def chunks(self) -> AsyncIterator[Json]:
        begun: set[int] = set()
        async for part in self._parts():
            if part.choice not in begun:
                begun.add(part.choice)
                for chunk in self._format.first_chunks(part.choice):
                    yield chunk
            if part.delta.text or part.delta.logprobs:
                yield self._format.text_chunk(part)
            if part.delta.result is not None:
                last = self._format.last_chunk(part.choice, part.delta.result)
                if len(self._results) == len(self._plan.prompts) * self._request.n:
                    last["metrics"] = self._metrics()
                yield last
        if self._request.include_usage:
            yield self._format.usage_chunk(self._usage(), self._metrics())

    async def _parts(self) -> AsyncIterator[Part]:
        pieces: dict[int, Pieces] = {}
        counts: dict[int, int] = {}
        wanted = self._request.speculative.return_tokens
        async for choice, delta in self._call.deltas():
            counts[choice] = counts.get(choice, 0) + len(delta.token_ids)
            mine = pieces.setdefault(choice, Pieces(self._vocabulary)).push(delta) if wanted else ()
            if delta.result is not None:
                self._results.append(delta.result)
            yield Part(choice, delta, mine, counts[choice])

    def _usage(self) -> Json:
        return usage(self._plan.num_prompt_tokens, sum(len(r.token_ids) for r in self._results))

    def _metrics(self) -> Json:
        total = RequestStats(method=self._results[0].stats.method)
        for result in self._results:
            total.add(result.stats)
        return speculative_metrics(total)


def _format(service: Service, request: GenerationRequest, plan: Plan) -> Format:
    vocabulary = service.engine.pair.target_vocabulary
    model, names = service.settings.model_name, TokenNames(vocabulary)
    options: dict[str, Any] = {
        "include_usage": request.include_usage,
        "return_tokens": request.speculative.return_tokens,
    }
    if isinstance(request, ChatRequest):
        return ChatFormat(model, names, request.num_logprobs, **options)
    assert isinstance(request, CompletionRequest)
    echoes = [
        (prompt if isinstance(prompt, str) else _decode(vocabulary.bytes_of(prompt))) if request.echo else ""
        for prompt in request.items
        for _ in range(request.n)
    ]
    return CompletionFormat(model, names, request.num_logprobs, echoes, **options)


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Reply:
    """What has been sent of a response: nothing, a part of a stream, or all."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False
        self._streaming = False

    async def whole(self, body: Json, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = _dump(body)
        fields = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        await self._start(status, fields)
        await self._send({"type": "http.response.body", "body": data})

    async def event(self, body: Json) -> None:
        """One server-sent event; the first one starts the response."""
        await self._event(_dump(body))

    async def done(self) -> None:
        await self._event(b"[DONE]")
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, error: ApiError) -> None:
        """The error as the whole response, or as the last event of a stream that has begun. Nothing where a whole
        response is on its way already."""
        if self._streaming:
            await self.event(error.body())
            await self.done()
        elif not self._started:
            await self.whole(error.body(), error.status, error.headers)

    async def _event(self, data: bytes) -> None:
        if not self._streaming:
            fields = {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
            self._streaming = True
            await self._start(200, fields)
        await self._send(
            {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True}
        )
        # Neither the queue nor a send need wait; a backlog must not keep the loop from others, or from noticing that
        # the client has left.
        await asyncio.sleep(0)

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self._started = True
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


def _dump(body: Json) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
