"""``anydraft chat``: a conversation in the terminal."""

from __future__ import annotations

from typing import Annotated

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


def chat(
    target: Target,
    draft: Draft = None,
    method: Method = "auto",
    num_speculative_tokens: NumSpeculativeTokens = None,
    system: System = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 1024,
    verification: Verification = "rejection",
    dtype: Dtype = None,
    draft_quantization: DraftQuantization = "auto",
    device: Device = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and no answers.")
    ] = False,
) -> None:
    """Chat with TARGET, sped up by a draft of any vocabulary; colours say where each token came from.

    /help lists what can be done besides talking. Without a terminal each line of standard input is a message.
    """
    from anydraft.cli.chat_loop import ChatLoop
    from anydraft.cli.conversation import Conversation
    from anydraft.cli.options import load_engine
    from anydraft.cli.output import print_json
    from anydraft.rules.params import SamplingParams

    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
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
        keep_draft=True,
    )
    conversation = Conversation(engine, params, system)
    engine.warm_up()
    loop = ChatLoop(conversation, quiet=json)
    loop.greet()
    loop.run()
    if json:
        print_json(conversation.to_dict())
    raise typer.Exit(1 if loop.failed else 0)
