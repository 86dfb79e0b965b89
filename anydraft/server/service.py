"""Between HTTP and the engine: limits, encoding, and the deltas of each call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from anydraft.engine.engine import EncodedPrompt, Engine
from anydraft.engine.outputs import Delta
from anydraft.errors import AnyDraftError
from anydraft.methods.base import Method
from anydraft.rules.params import SamplingParams
from anydraft.server.errors import ApiError, internal_error, shutting_down
from anydraft.server.metrics import Metrics
from anydraft.server.protocol import ChatRequest, GenerationRequest
from anydraft.server.settings import ServerSettings
from anydraft.server.worker import Delivered, EngineFailure, EngineWorker, Job

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """A checked request: prompts as ids, how many tokens each may get, and its method."""

    prompts: tuple[EncodedPrompt, ...]
    max_tokens: tuple[int, ...]
    method: Method | None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.target_ids) for prompt in self.prompts)


class Service:
    """What the routes call; lives in one event loop.

    Prompts are encoded in a thread of their own, so that a long one holds up neither the engine nor the loop.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = Metrics(settings.model_name, lambda: engine.pair.runner.cache.num_bytes)
        self._worker = EngineWorker(engine, self.metrics)
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="anydraft-encode")
        self._capacity = engine.core.max_num_seqs + settings.max_queue
        self._held = 0
        self._accepting = False

    def start(self) -> None:
        self._worker.start()
        self._accepting = True

    async def drain(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Accept nothing more; give what runs ``shutdown_timeout`` seconds (none once ``hurry`` says so), then end
        it with finish reason "abort"."""
        self._accepting = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.shutdown_timeout
        while self._held and loop.time() < deadline and not hurry():
            await asyncio.sleep(0.02)
        self._worker.abort_all()

    async def stop(self) -> None:
        self._accepting = False
        await asyncio.to_thread(self._worker.stop)
        self._encoder.shutdown(wait=False, cancel_futures=True)

    @property
    def healthy(self) -> bool:
        return self._worker.healthy

    @property
    def ready(self) -> bool:
        return self.healthy and self._accepting

    @property
    def num_held(self) -> int:
        """Choices that were accepted and have not ended."""
        return self._held

    async def plan(self, request: GenerationRequest) -> Plan:
        """Encode a request and check it against the limits.

        Raises:
            ApiError: it cannot be served.
        """
        chat = isinstance(request, ChatRequest)
        prompts = []
        for item in request.items:
            encode = partial(self.engine.encode, item, chat=chat)
            prompts.append(await self._in_thread(encode, request.input_name))
        wanted = request.speculative
        choose = partial(self.engine.choose_method, wanted.method, wanted.num_speculative_tokens)
        method = await self._in_thread(choose, "speculative")
        limits = tuple(self._max_tokens(request, len(prompt.target_ids)) for prompt in prompts)
        return Plan(tuple(prompts), limits, method)

    async def _in_thread(self, work: Callable[[], T], param: str) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._encoder, work)
        except AnyDraftError as error:
            raise ApiError(400, str(error), param=param) from error

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        context = self.engine.max_length
        most = min(self.settings.max_prompt_tokens or context - 1, context - 1)
        if prompt_tokens > most:
            raise ApiError(
                400,
                f"The prompt has {prompt_tokens} tokens, but this server takes at most {most}; shorten it.",
                param=request.input_name,
                code="context_length_exceeded",
            )
        room = context - prompt_tokens
        limit = min(self.settings.max_output_tokens or room, room)
        wanted = request.output_limit
        given = request.model_fields_set & {"max_tokens", "max_completion_tokens"}
        if wanted is not None and given and wanted > limit:
            raise ApiError(
                400,
                f"max_tokens={wanted} is more than the {limit} that this server gives after a prompt of "
                f"{prompt_tokens} tokens; ask for fewer.",
                param="max_completion_tokens" if "max_completion_tokens" in given else "max_tokens",
                code="context_length_exceeded" if limit == room else None,
            )
        return min(wanted or limit, limit)

    def hold(self, count: int) -> Call:
        """Places for ``count`` choices, before any work is done for them.

        Raises:
            ApiError: shutting down (503), failed (500), full (429), or more than ever fit (400).
        """
        if not self.healthy:
            raise internal_error()
        if not self._accepting:
            raise shutting_down()
        if count > self._capacity:
            raise ApiError(
                400,
                f"{count} choices in one request are more than the {self._capacity} that this server holds at "
                "once; ask for fewer.",
                param="n",
            )
        if self._held + count > self._capacity:
            raise ApiError(
                429,
                f"The server is full: it holds {self._held} of {self._capacity} choices; try again later.",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        self._held += count
        return Call(self, self._worker, count)

    def release(self, count: int) -> None:
        """Give back places; a :class:`Call` does it."""
        self._held -= count


class Call:
    """The choices of one HTTP request in the engine; a context manager that leaves none behind.

    Deltas wait in a queue until they are read. It holds text that was generated anyway, at most the request's
    ``max_tokens`` of it, so a slow reader costs that much memory and never a row.
    """

    def __init__(self, service: Service, worker: EngineWorker, count: int) -> None:
        self._service = service
        self._worker = worker
        self._open = set(range(count))
        self._jobs: dict[int, Job] = {}
        self._queue: asyncio.Queue[tuple[int, Delivered]] = asyncio.Queue()
        self._closed = False

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: Any) -> None:
        self._closed = True
        for choice in list(self._open):
            if choice in self._jobs:
                self._worker.abort(self._jobs[choice])
            else:
                self._end(choice)

    def submit(self, plan: Plan, params: Sequence[SamplingParams]) -> None:
        """Queue all choices: those of the first prompt, then those of the next."""
        loop = asyncio.get_running_loop()
        each = len(params) // len(plan.prompts)
        for choice, own in enumerate(params):

            def deliver(item: Delivered, choice: int = choice) -> None:
                loop.call_soon_threadsafe(self._receive, choice, item)

            job = Job(plan.prompts[choice // each], own, plan.method, deliver)
            self._jobs[choice] = job
            self._worker.submit(job)

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, delta) until every choice has ended.

        Raises:
            ApiError: the engine failed, or a choice's parameters turned out to leave nothing to emit.
        """
        remaining = len(self._jobs)
        while remaining:
            choice, item = await self._queue.get()
            if isinstance(item, EngineFailure):
                raise internal_error()
            if isinstance(item, AnyDraftError):
                raise ApiError(400, str(item))
            if item.result is not None:
                remaining -= 1
                if item.result.error is not None:
                    raise ApiError(400, item.result.error)
            yield choice, item

    def _receive(self, choice: int, item: Delivered) -> None:
        if not isinstance(item, Delta) or item.result is not None:
            self._end(choice)
        if not self._closed:
            self._queue.put_nowait((choice, item))

    def _end(self, choice: int) -> None:
        if choice in self._open:
            self._open.discard(choice)
            self._service.release(1)
