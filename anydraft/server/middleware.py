"""What stands before every route: the key, and bounds on the body."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anydraft.server.errors import ApiError

_DISCARD = 64 * 2**20
"""Bytes of a refused body that are read all the same, so that the client gets to see the answer."""


class ApiKeys:
    """Lets /v1 be used only with one of ``keys`` as the bearer token."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._allowed(scope):
            error = ApiError(
                401,
                "This server wants an API key, and none or a wrong one was given; send 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            response = JSONResponse(error.body(), error.status, error.headers)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # Every key is compared, so that the time tells nothing of which one came close.
        matches = [secrets.compare_digest(given.strip().encode(), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


class BodyLimits:
    """Refuses bodies that are too large (413) or not declared as JSON (415).

    The second keeps a web page that a user happens to visit from posting to a server on their machine: a browser asks
    before it sends JSON to another origin.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            given = f"'{kind}'" if kind else "missing"
            error = ApiError(415, f"The content type is {given}; send JSON as 'application/json'.")
        elif (length := headers.get("content-length", "")).isdigit() and int(length) > self._max_bytes:
            error = self._too_large()
        else:
            await self._app(scope, self._counting(receive), send)
            return
        await _discard(receive)
        await JSONResponse(error.body(), error.status)(scope, receive, send)

    def _counting(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise HTTPException(413, str(self._too_large()))
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is larger than the {self._max_bytes} bytes that this server takes.")


async def _discard(receive: Receive) -> None:
    seen = 0
    while seen < _DISCARD:
        message = await receive()
        seen += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return
