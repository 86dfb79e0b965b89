"""Errors as OpenAI shapes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "server_error", 504: "timeout_error"}


class ApiError(Exception):
    """Something that a client is told with an HTTP status.

    Args:
        status: HTTP status.
        message: what was given, what is expected, what to do.
        param: the field that is wrong, if one is.
        code: OpenAI's word for it, if there is one.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """{"error": {...}} for JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        # A lone surrogate that a client sent may be quoted in the message; no JSON could be encoded with it.
        message = str(self).encode("utf-8", "backslashreplace").decode()
        return {
            "error": {
                "message": message,
                "type": _TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }


def internal_error() -> ApiError:
    """For what is our fault; the details are in the log, not in the response."""
    return ApiError(500, "The server failed on this request; its log says why.", code="internal_error")


def shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down; ask another one, or later.", code="shutting_down")
