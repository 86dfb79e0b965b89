"""Real servers over tiny models, on free ports, in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from anydraft.engine import Engine
from anydraft.server.serve import GracefulServer, listen, make_server
from anydraft.server.service import Service
from anydraft.server.settings import ServerSettings
from tests import tiny

MODEL = "tiny/llama"
PROMPT = "The quick brown fox"


class Running:
    """A server that answers at ``url``."""

    def __init__(self, engine: Engine, server: GracefulServer, url: str) -> None:
        self.engine = engine
        self.server = server
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60)

    @property
    def service(self) -> Service:
        return self.server._service

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            **{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 60, **options}
        )

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self.http.post(f"/v1/{path}", json={"model": MODEL, **fields})

    def metric(self, name: str) -> float:
        """The sum of a metric's samples, whatever their labels."""
        lines = [
            line
            for line in self.http.get("/metrics").text.splitlines()
            if line.startswith((f"{name}{{", f"{name} "))
        ]
        assert lines, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def is_idle(self) -> bool:
        core = self.engine.core
        return self.service.num_held == 0 and core.num_running == 0 and core.num_waiting == 0


def eventually(holds: Callable[[], bool], seconds: float = 40.0) -> bool:
    """Whether ``holds`` becomes true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def tiny_engine(**options: Any) -> Engine:
    return Engine(
        tiny.llama(), tiny.gemma3(), **{"method": "slem", "dtype": "float32", "max_num_seqs": 4, **options}
    )


@contextmanager
def running(engine: Engine | None = None, **settings: Any) -> Iterator[Running]:
    """A server until the end of the block; it is stopped gracefully, and must stop."""
    engine = engine or tiny_engine()
    settings = {"model_name": MODEL, "shutdown_timeout": 0.0, **settings}
    listener = listen("127.0.0.1", 0)
    server = make_server(engine, ServerSettings(**settings))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    assert eventually(lambda: server.started)
    here = Running(engine, server, f"http://127.0.0.1:{listener.getsockname()[1]}")
    try:
        yield here
    finally:
        here.http.close()
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive(), "the server did not stop"
