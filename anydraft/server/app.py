"""The routes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response

from anydraft._version import __version__
from anydraft.engine.engine import Engine
from anydraft.engine.prompts import has_chat_template
from anydraft.server.errors import ApiError, internal_error
from anydraft.server.middleware import ApiKeys, BodyLimits
from anydraft.server.page import chat_page, content_security_policy
from anydraft.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from anydraft.server.respond import GenerationResponse
from anydraft.server.service import Service
from anydraft.server.settings import ServerSettings

_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(engine: Engine, settings: ServerSettings) -> FastAPI:
    """The ASGI application over ``engine``, which is its own from its start on; ``app.state.service`` runs it."""
    service = Service(engine, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="AnyDraft",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    _add_generation(app, service)
    _add_models(app, service)
    _add_state(app, service)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_exception)
    app.add_middleware(BodyLimits, max_bytes=settings.max_body_bytes)
    if settings.api_keys:
        app.add_middleware(ApiKeys, keys=settings.api_keys)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    return app


def _add_generation(app: FastAPI, service: Service) -> None:
    def check_model(request: GenerationRequest) -> None:
        if request.model not in (None, service.settings.model_name):
            raise _no_such_model(request.model, service)

    @app.post("/v1/completions", response_class=Response)
    async def completions(request: CompletionRequest) -> Response:
        """Continue a prompt; OpenAI's endpoint of the same name."""
        check_model(request)
        return GenerationResponse(service, request)

    @app.post("/v1/chat/completions", response_class=Response)
    async def chat_completions(request: ChatRequest) -> Response:
        """Answer a conversation; OpenAI's endpoint of the same name."""
        check_model(request)
        return GenerationResponse(service, request)


def _add_models(app: FastAPI, service: Service) -> None:
    card = _model_card(service.engine, service.settings)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The same by its name."""
        if name != service.settings.model_name:
            raise _no_such_model(name, service)
        return card


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """200 while the engine works, 503 once it failed for good."""
        return _state(service.healthy, "the engine failed; see the server's log")

    @app.get("/ready")
    async def ready() -> Response:
        """200 while new requests are accepted, 503 from the beginning of a shutdown on."""
        return _state(service.ready, "no new requests are accepted")

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    page = chat_page()
    headers = {"Content-Security-Policy": content_security_policy(page), "Referrer-Policy": "no-referrer"}

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(page, headers=headers)


def _model_card(engine: Engine, settings: ServerSettings) -> dict[str, Any]:
    pair = engine.pair
    return {
        "id": settings.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "anydraft",
        "max_model_len": engine.max_length,
        "speculative": {
            "draft": pair.draft.name if pair.draft is not None else None,
            "method": engine.method,
            "methods": engine.methods,
            "chat": has_chat_template(pair.target),
        },
    }


def _no_such_model(name: str, service: Service) -> ApiError:
    return ApiError(
        404,
        f"The model {name!r:.200} does not exist; this server has {service.settings.model_name!r}.",
        param="model",
        code="model_not_found",
    )


def _state(good: bool, otherwise: str) -> Response:
    return JSONResponse({"status": "ok" if good else otherwise}, 200 if good else 503)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, error.headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _on_api_error(request, _explain(error.errors()))


def _explain(errors: Sequence[dict[str, Any]]) -> ApiError:
    """The first mistake of a body, in words."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not JSON: {first['ctx']['error']}.", code="invalid_json")
    path = [str(p) for p in first["loc"] if p != "body"]
    param = first.get("ctx", {}).get("param") or (path[0] if path else None)
    message = first["msg"]
    if path:
        message = f"{'.'.join(path)}: {message}"
        given = first.get("input")
        if first["type"] != "missing" and isinstance(given, str | int | float):
            message += f" (given: {given!r:.80})"
    return ApiError(400, message, param=param)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code in _CODES:
        message = f"{message}: {request.method} {request.url.path:.200}"
    return await _on_api_error(
        request,
        ApiError(error.status_code, message, code=_CODES.get(error.status_code), headers=error.headers),
    )


async def _on_exception(request: Request, error: Exception) -> Response:
    return await _on_api_error(request, internal_error())
