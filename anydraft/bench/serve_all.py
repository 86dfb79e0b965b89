"""Prompts through an engine, all of them, however they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anydraft.bench.prompts import BenchPrompt
from anydraft.engine.engine import Engine
from anydraft.engine.outputs import GenerationResult
from anydraft.engine.prompts import Tokenized, chat_ids, has_chat_template, prompt_ids
from anydraft.errors import UsageError
from anydraft.rules.params import SamplingParams

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


def target_ids(target: Tokenized, prompt: BenchPrompt) -> tuple[int, ...]:
    """A prompt in the target's ids: through the chat template where it is a conversation and the target has one."""
    if prompt.messages is not None and has_chat_template(target):
        return chat_ids(target, prompt.messages)
    return prompt_ids(target, prompt.text)


def serve_all(
    engine: Engine,
    prompts: Sequence[BenchPrompt | Sequence[int]],
    params: Sequence[SamplingParams],
    done: Callable[[], None] = lambda: None,
) -> list[GenerationResult]:
    """Generate for each prompt with its own parameters; results in their order.

    Conversations go through the chat template where the target has one, else as raw text; sequences are
    target ids. ``done`` is called for each finished request.

    Raises:
        UsageError: a prompt cannot be served; it is named, and nothing is left in the engine.
    """
    order: list[str] = []
    results: dict[str, GenerationResult] = {}
    chats = has_chat_template(engine.pair.target)
    try:
        for prompt, param in zip(prompts, params, strict=True):
            if not isinstance(prompt, BenchPrompt):
                order.append(engine.add_request(prompt, param))
                continue
            chat = prompt.messages is not None and chats
            try:
                order.append(engine.add_request(prompt.messages if chat else prompt.text, param, chat=chat))
            except UsageError as error:
                raise UsageError(f"prompt {prompt.id}: {error}") from error
        while len(results) < len(order):
            for delta in engine.core.step():
                if delta.result is not None:
                    results[delta.request_id] = delta.result
                    done()
    finally:
        for request_id in order:
            if request_id not in results:
                engine.core.abort(request_id)
    for result in results.values():
        if result.error is not None:
            raise UsageError(result.error)
    return [results[request_id] for request_id in order]
