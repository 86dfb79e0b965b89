"""``anydraft serve``: an OpenAI-compatible server and its page."""

from __future__ import annotations

from typing import Annotated

import typer

from anydraft.cli.options import (
    Device,
    Draft,
    DraftQuantization,
    Dtype,
    Method,
    NumSpeculativeTokens,
    Target,
    Verification,
)


def serve(
    target: Target,
    draft: Draft = None,
    method: Method = "auto",
    num_speculative_tokens: NumSpeculativeTokens = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; by default this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="ANYDRAFT_API_KEY",
            show_envvar=True,
            help="Clients of /v1 must send this key; may be given again. Better in the environment.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Web pages from there may call it (CORS); may be given again."),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="How clients name the model; by default TARGET.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at once.")] = 16,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Of the target's keys and values, such as 4GiB; requests wait until theirs fit. By default no limit.",
        ),
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; more get status 429.")] = 64,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Of a request; by default the target's context.")
    ] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(help="Of a request; by default the target's context.")
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(help="Of a request; more gets status 413.")] = 8 * 2**20,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds from a request's arrival to the end of its response.")
    ] = 600.0,
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests get to finish after SIGTERM or Ctrl-C.")
    ] = 30.0,
    verification: Verification = "rejection",
    dtype: Dtype = None,
    draft_quantization: DraftQuantization = "auto",
    device: Device = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with the URL when requests are taken.")
    ] = False,
) -> None:
    """Serve TARGET over HTTP as OpenAI does, sped up by a draft of any vocabulary.

    /v1/chat/completions, /v1/completions, /v1/models; /metrics for Prometheus, /health, /ready; and at / a page that
    shows where each token came from. Ctrl-C or SIGTERM lets running requests finish; a second one does not.
    """
    from anydraft.cli.options import load_engine
    from anydraft.cli.output import print_json, print_progress
    from anydraft.errors import UsageError
    from anydraft.server.settings import ServerSettings

    settings = ServerSettings(
        model_name=served_model_name or target,
        api_keys=tuple(api_key or ()),
        allowed_origins=tuple(allow_origin or ()),
        max_body_bytes=max_body_bytes,
        max_prompt_tokens=max_prompt_tokens,
        max_output_tokens=max_output_tokens,
        max_queue=max_queue,
        request_timeout=request_timeout,
        shutdown_timeout=shutdown_timeout,
    )
    try:
        from anydraft.server.serve import serve as run_server
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serving needs the package {error.name}, which is not installed; run pip install 'anydraft[serve]'"
        ) from error
    engine = load_engine(
        target,
        draft,
        method=method,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
        dtype=dtype,
        draft_quantization=draft_quantization,
        device=device,
        max_num_seqs=max_num_seqs,
        kv_memory=kv_memory,
        keep_draft=True,
    )
    engine.warm_up()
    if not api_key and host not in ("127.0.0.1", "localhost", "::1"):
        print_progress(f"anybody who reaches {host} may use this server; --api-key closes it")

    def on_listening(url: str) -> None:
        print_progress(f"serving {settings.model_name} at {url} with method {engine.method}; Ctrl-C ends it")
        if json:
            print_json({"url": url, "model": settings.model_name, "method": engine.method})

    run_server(engine, settings, host, port, on_listening)
