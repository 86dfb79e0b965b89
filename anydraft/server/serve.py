"""From an engine to a running server, and back down."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from anydraft.engine.engine import Engine
from anydraft.errors import AnyDraftError
from anydraft.server.app import create_app
from anydraft.server.service import Service
from anydraft.server.settings import ServerSettings

logger = logging.getLogger(__name__)

_BACKSTOP = 5.0
"""Seconds that connections get to close after their responses have ended."""


class GracefulServer(uvicorn.Server):
    """Ends running responses before it stops listening: meanwhile /ready says no, and so do new requests."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own, which raises the signal again once all is down: a clean stop exits with 0.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.drain(lambda: self.force_exit)
        await super().shutdown(sockets)


def make_server(engine: Engine, settings: ServerSettings) -> GracefulServer:
    """A server that is not yet bound to a port; ``await server.serve(sockets=[...])`` runs it."""
    app = create_app(engine, settings)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=int(_BACKSTOP),
    )
    return GracefulServer(config, app.state.service)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        AnyDraftError: the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise AnyDraftError(
            f"{host}:{port} cannot be listened on: {error}; choose another --host or --port"
        ) from error


def serve(
    engine: Engine, settings: ServerSettings, host: str, port: int, on_listening: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM; the second of them ends what still runs at once.

    ``on_listening`` gets the URL once requests are taken.
    """
    listener = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}"
    server = make_server(engine, settings)

    async def run() -> None:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        if server.started:
            on_listening(url)
        await running

    with listener:
        asyncio.run(run())
