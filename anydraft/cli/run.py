"""``anydraft run``: generate once, streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from anydraft.engine import Engine, GenerationResult


def run(
    target: Annotated[str, typer.Argument(help="Packaged name, folder, GGUF file or hub id.")],
    prompt: Annotated[str, typer.Argument(help="The prompt; '-' reads it from standard input.")],
    draft: Annotated[
        str | None, typer.Option(help="The small model that drafts, named the same way.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto, standard, tli, slem, slrs, lookup or none.", metavar="NAME")
    ] = "auto",
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Draft tokens a step; by default the method's choice.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely tokens of this total mass.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from so many most likely tokens; 0: all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the most likely one.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 256,
    stop: Annotated[list[str] | None, typer.Option(help="End at this string; may be given again.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="Use the chat template or not; by default if the target has one."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    verification: Annotated[
        str, typer.Option(help="rejection, block or coupled.", metavar="NAME")
    ] = "rejection",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; by default chosen.")
    ] = None,
    draft_quantization: Annotated[
        str, typer.Option(help="Weights of the draft: auto, none, int8 or int4.", metavar="NAME")
    ] = "auto",
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; by default the GPU if there is one.")
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

    from anydraft.cli.output import print_json
    from anydraft.engine import Engine
    from anydraft.errors import UsageError
    from anydraft.rules.params import SamplingParams

    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise UsageError("the prompt is empty; give some text, or '-' and text on standard input")
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
    )
    if draft is None and method not in ("auto", "lookup", "none"):
        raise UsageError(
            f"--method {method} needs a draft model; add --draft, or use --method lookup or none"
        )
    engine = Engine(
        target,
        draft,
        method=method,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,  # type: ignore[arg-type]
        dtype=dtype,
        draft_quantization=draft_quantization,  # type: ignore[arg-type]
        device=device,
        max_num_seqs=1,
    )
    call = _call(engine, text, chat, system)
    started = time.perf_counter()
    result: GenerationResult | None = None
    for delta in engine.stream(**call, sampling_params=params):
        result = delta.result
        if not json:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    seconds = time.perf_counter() - started
    assert result is not None
    if result.error is not None:
        raise UsageError(result.error)
    report = _report(engine, result, seconds, target, draft)
    if json:
        print_json(report)
    else:
        sys.stdout.write("\n")
        sys.stderr.write(_line(report) + "\n")


def _call(engine: Engine, text: str, chat: bool | None, system: str | None) -> dict[str, Any]:
    """The prompt or the messages to generate for."""
    from anydraft.engine.prompts import has_chat_template
    from anydraft.errors import UsageError

    if chat is None:
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
