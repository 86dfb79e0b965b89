"""The one thread that owns the engine."""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from anydraft.engine.engine import EncodedPrompt, Engine
from anydraft.engine.outputs import Delta
from anydraft.errors import AnyDraftError
from anydraft.methods.base import Method
from anydraft.rules.params import SamplingParams

logger = logging.getLogger(__name__)

_FAILURES_ALLOWED = 3
"""Steps that fail one after another before the engine counts as broken."""


class EngineFailure(Exception):
    """A step of the engine failed, which is no request's fault."""


Delivered = Delta | AnyDraftError | EngineFailure


@dataclass(eq=False)
class Job:
    """One request on its way to the engine.

    Attributes:
        deliver: gets each delta, or the error that ends the job; called in the engine's thread.
        arrived: on the clock of ``time.perf_counter``.
        id: the engine's name for it, once it has one.
    """

    prompt: EncodedPrompt
    params: SamplingParams
    method: Method | None
    deliver: Callable[[Delivered], None]
    arrived: float = field(default_factory=time.perf_counter)
    id: str | None = None


class Observer(Protocol):
    """Is told what happens, in the engine's thread."""

    def on_delta(self, job: Job, delta: Delta) -> None: ...

    def on_rows(self, running: int, waiting: int) -> None: ...

    def on_failure(self) -> None: ...


class EngineWorker:
    """Runs an engine's steps in a thread of its own; everything else talks to it through a queue.

    A step that fails ends the requests that the engine held and nothing more: rows are filled anew from each
    prompt, so the next request starts clean. After several failures in a row :attr:`healthy` is false.
    """

    def __init__(self, engine: Engine, observer: Observer) -> None:
        self._engine = engine
        self._observer = observer
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}
        self._failures = 0
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="anydraft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all jobs and the thread; returns when it has ended."""
        self._inbox.put(self._end_all)
        self._inbox.put(None)
        self._thread.join()

    def submit(self, job: Job) -> None:
        self._inbox.put(functools.partial(self._add, job))

    def abort(self, job: Job) -> None:
        """End a job before the next step; its last delta has finish reason "abort"."""
        self._inbox.put(functools.partial(self._end, job))

    def abort_all(self) -> None:
        self._inbox.put(self._end_all)

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and not self._broken and self._failures < _FAILURES_ALLOWED

    def _run(self) -> None:
        core = self._engine.core
        try:
            while True:
                for command in self._commands(wait=not core.has_unfinished):
                    if command is None:
                        return
                    command()
                if core.has_unfinished:
                    self._step()
                self._observer.on_rows(core.num_running, core.num_waiting)
        except BaseException:
            self._broken = True
            logger.exception("the engine's thread ended")
            self._fail_all()
            for command in iter(self._inbox.get, None):
                command()

    def _commands(self, *, wait: bool) -> list[Callable[[], None] | None]:
        """What has come in; at least one command if ``wait``."""
        commands = [self._inbox.get()] if wait else []
        while True:
            try:
                commands.append(self._inbox.get_nowait())
            except queue.Empty:
                return commands

    def _add(self, job: Job) -> None:
        if self._broken:
            job.deliver(EngineFailure())
            return
        try:
            job.id = self._engine.add_encoded(job.prompt, job.params, job.method)
        except AnyDraftError as error:
            job.deliver(error)
        except Exception:
            logger.exception("a request could not be started")
            job.deliver(EngineFailure())
        else:
            self._jobs[job.id] = job

    def _end(self, job: Job) -> None:
        if job.id is not None and job.id in self._jobs:
            delta = self._engine.core.abort(job.id)
            if delta is not None:
                self._pass_on(delta)

    def _end_all(self) -> None:
        for job in list(self._jobs.values()):
            self._end(job)

    def _step(self) -> None:
        try:
            deltas = self._engine.core.step()
        except Exception:
            self._failures += 1
            logger.exception("a step failed; its requests end")
            self._observer.on_failure()
            self._fail_all()
            return
        self._failures = 0
        for delta in deltas:
            self._pass_on(delta)

    def _pass_on(self, delta: Delta) -> None:
        job = self._jobs[delta.request_id]
        if delta.result is not None:
            del self._jobs[delta.request_id]
        self._observer.on_delta(job, delta)
        job.deliver(delta)

    def _fail_all(self) -> None:
        jobs, self._jobs = self._jobs, {}
        for job_id, job in jobs.items():
            job.deliver(EngineFailure())
            try:
                self._engine.core.abort(job_id)
            except Exception:
                self._broken = True
                logger.exception("a request could not be removed from the engine")
