"""``anydraft run``: generate once, streaming."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anydraft.cli.options import (
    Device,
    Draft,
    DraftQuantization,
    Dtype,
    Method,
    MinP,
    NumSpeculativeTokens,
    Seed,
    System,
    Target,
    Temperature,
    TopK,
    TopP,
    Verification,
)

if TYPE_CHECKING:
    from anydraft.engine import Engine, GenerationResult


def run(
    target: Target,
    prompt: Annotated[str, typer.Argument(help="The prompt; '-' reads it from standard input.")],
    draft: Draft = None,
    method: Method = "auto",
    num_speculative_tokens: NumSpeculativeTokens = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 256,
    stop: Annotated[list[str] | None, typer.Option(help="End at this string; may be given again.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template or not; by default if the target has one."),
    ] = None,
    system: System = None,
    verification: Verification = "rejection",
    dtype: Dtype = None,
    draft_quantization: DraftQuantization = "auto",
    device: Device = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page that shows where each token came from."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and no stream.")
    ] = False,
) -> None:
    """Generate with TARGET, sped up by a draft of any vocabulary, and say how much the draft helped.

    The text goes to stdout as it comes, a line of statistics to stderr.
    """
    import sys
    import time
    from dataclasses import asdict

    from anydraft.cli.options import load_engine
    from anydraft.cli.output import print_json
    from anydraft.engine.pieces import Pieces
    from anydraft.errors import UsageError
    from anydraft.rules.params import SamplingParams
    from anydraft.server.page import trace_page

    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise UsageError("the prompt is empty; give some text, or '-' and text on standard input")
    if trace is not None:
        _require_writable(trace)
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
    )
    engine = load_engine(
        target,
        draft,
        method=method,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
        dtype=dtype,
        draft_quantization=draft_quantization,
        device=device,
        max_num_seqs=1,
    )
    if trace is not None:
        engine.warm_up()
    call = _call(engine, text, chat, system)
    started = time.perf_counter()
    result: GenerationResult | None = None
    pieces = Pieces(engine.pair.target_vocabulary)
    steps: list[list[dict[str, str]]] = []
    for delta in engine.stream(**call, sampling_params=params):
        result = delta.result
        if trace is not None:
            steps.append([asdict(piece) for piece in pieces.push(delta)])
        if not json:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    seconds = time.perf_counter() - started
    assert result is not None
    if result.error is not None:
        raise UsageError(result.error)
    report = _report(engine, result, seconds, target, draft)
    if trace is not None:
        _write(trace, trace_page({**report, "prompt": text, "steps": steps}))
    if json:
        print_json(report)
    else:
        sys.stdout.write("\n")
        sys.stderr.write(_line(report) + "\n")


def _require_writable(path: Path) -> None:
    """Before anything is loaded; leaves no file behind."""
    from anydraft.errors import UsageError

    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; give --trace another file") from error
    if not existed:
        path.unlink()


def _write(path: Path, page: str) -> None:
    from anydraft.errors import AnyDraftError

    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise AnyDraftError(
            f"{path} cannot be written: {error.strerror}; give --trace another file"
        ) from error


def _call(engine: Engine, text: str, chat: bool | None, system: str | None) -> dict[str, Any]:
    """The prompt or the messages to generate for."""
    from anydraft.engine.prompts import has_chat_template, require_chat_template
    from anydraft.errors import UsageError

    if chat:
        require_chat_template(engine.pair.target, "leave out --chat, or use --raw")
    elif chat is None:
        chat = has_chat_template(engine.pair.target)
    if not chat:
        if system is not None:
            raise UsageError("--system belongs to a chat; leave out --raw, or put the text into the prompt")
        return {"prompt": text}
    messages = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*messages, {"role": "user", "content": text}]}


def _report(
    engine: Engine, result: GenerationResult, seconds: float, target: str, draft: str | None
) -> dict[str, Any]:
    count = len(result.token_ids)
    return {
        "target": target,
        "draft": draft,
        "method": engine.method,
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "usage": {
            "prompt_tokens": len(result.prompt_token_ids),
            "completion_tokens": count,
            "total_tokens": len(result.prompt_token_ids) + count,
        },
        "seconds": seconds,
        "tokens_per_second": count / seconds if seconds else 0.0,
        "metrics": {"speculative_decoding": result.stats.to_dict()},
    }


def _line(report: dict[str, Any]) -> str:
    stats = report["metrics"]["speculative_decoding"]
    return (
        f"[{report['method']}] {report['usage']['completion_tokens']} tokens in {report['seconds']:.2f} s, "
        f"{report['tokens_per_second']:.2f} tok/s; acceptance length {stats['acceptance_length']:.2f}, "
        f"acceptance rate {100 * stats['acceptance_rate']:.1f} %, {stats['num_steps']} target calls"
    )
