"""What whoever starts the server decides."""

from __future__ import annotations

from dataclasses import dataclass

from anydraft.errors import UsageError


@dataclass(frozen=True)
class ServerSettings:
    """Names, doors and limits of a server.

    Attributes:
        model_name: how clients name the model.
        api_keys: any of them opens /v1; empty: open to whoever reaches the port.
        allowed_origins: origins of web pages that may call it from a browser ("*": all).
        max_body_bytes: of a request; more is refused with 413.
        max_prompt_tokens, max_output_tokens: of a request; None: the target's context.
        max_queue: choices that may wait for a row; more are refused with 429.
        request_timeout: seconds from a request's arrival to the end of its response.
        shutdown_timeout: seconds that running requests get to finish when the server stops.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 2**20
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    max_queue: int = 64
    request_timeout: float = 600.0
    shutdown_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name, least in (("max_body_bytes", 1), ("max_prompt_tokens", 1), ("max_output_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name}={value} must be at least {least}")
        if self.max_queue < 0:
            raise UsageError(f"max_queue={self.max_queue} must be at least 0")
        if not self.request_timeout > 0:
            raise UsageError(f"request_timeout={self.request_timeout} must be above 0 seconds")
        if not self.shutdown_timeout >= 0:
            raise UsageError(f"shutdown_timeout={self.shutdown_timeout} must be at least 0 seconds")
        if "" in self.api_keys:
            raise UsageError("an API key is empty; give a secret, or leave it out for an open server")
