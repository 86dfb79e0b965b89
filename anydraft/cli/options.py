"""Arguments and options that several commands have, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anydraft.bench.prompts import BenchPrompt
    from anydraft.engine import Engine

Target = Annotated[str, typer.Argument(help="Packaged name, folder, GGUF file or hub id.")]
Draft = Annotated[str | None, typer.Option(help="The small model that drafts, named the same way.")]
RequiredDraft = Annotated[str, typer.Argument(help="The small model that drafts, named the same way.")]
Method = Annotated[str, typer.Option(help="auto, standard, tli, slem, slrs, lookup or none.", metavar="NAME")]
NumSpeculativeTokens = Annotated[
    int | None, typer.Option(help="Draft tokens a step; by default the method's choice.")
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Sample from the most likely tokens of this total mass.")]
TopK = Annotated[int, typer.Option(help="Sample from so many most likely tokens; 0: all.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the most likely one.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
System = Annotated[str | None, typer.Option(help="System message of the chat.")]
Prompts = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Your own: a prompt a line, or JSON lines with 'prompt' or 'messages'."
    ),
]
Verification = Annotated[str, typer.Option(help="rejection, block or coupled.", metavar="NAME")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; by default chosen.")]
DraftQuantization = Annotated[
    str, typer.Option(help="Weights of the draft: auto, none, int8 or int4.", metavar="NAME")
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default the GPU if there is one.")]
JsonReport = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def chosen_prompts(
    file: str | None, count: int | None, default_count: int, categories: Sequence[str] | None = None
) -> list[BenchPrompt]:
    """What ``--prompts``, ``--num-prompts`` and ``--category`` choose.

    Args:
        file: of the user's own prompts, of which the first ``count`` are taken, by default all.
        count: of the packaged prompts, by default ``default_count``.
        categories: of the packaged prompts; None: all in turn.

    Raises:
        UsageError: they contradict each other, or there are no such prompts.
    """
    from anydraft.bench.prompts import CATEGORIES, file_prompts, packaged_prompts
    from anydraft.errors import UsageError

    if count is not None and count < 1:
        raise UsageError(f"--num-prompts {count} must be at least 1")
    if file is None:
        return packaged_prompts(default_count if count is None else count, categories or CATEGORIES)
    if categories:
        raise UsageError("--category chooses of the package's prompts; leave it out with --prompts")
    return file_prompts(file)[:count]


def load_engine(
    target: str,
    draft: str | None,
    *,
    method: str,
    num_speculative_tokens: int | None,
    verification: str,
    dtype: str | None,
    draft_quantization: str,
    device: str | None,
    max_num_seqs: int,
    kv_memory: str | None = None,
    keep_draft: bool = False,
) -> Engine:
    """The engine that the options ask for.

    Args:
        keep_draft: load the draft also where ``method`` makes no use of it, because requests may.

    Raises:
        UsageError: a method that needs a draft, without one.
    """
    from anydraft.engine import Engine
    from anydraft.errors import UsageError
    from anydraft.methods.select import METHODS

    if draft is None and method in METHODS and method not in ("auto", "lookup", "none"):
        raise UsageError(
            f"--method {method} needs a draft model; add --draft, or use --method lookup or none"
        )
    idle = keep_draft and draft is not None and method in ("lookup", "none")
    engine = Engine(
        target,
        draft,
        method="auto" if idle else method,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,  # type: ignore[arg-type]
        dtype=dtype,
        draft_quantization=draft_quantization,  # type: ignore[arg-type]
        device=device,
        max_num_seqs=max_num_seqs,
        kv_memory=kv_memory,
    )
    if not idle:
        return engine
    return engine.with_method(
        method,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,  # type: ignore[arg-type]
        max_num_seqs=max_num_seqs,
    )
