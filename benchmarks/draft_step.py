"""One step of a draft model, Transformers beside ours: what each measure gives in time and costs in agreement.

    python benchmarks/draft_step.py [--target TARGET] [--drafts NAME ...] [--context 128] [--rounds 31]

A step is one token after a context, its logits and their argmax. The contenders run in turns, round by round; times
are medians. Agreement: of the next tokens of packaged prompts that Transformers has as argmax in float32, the share
that the contender has too (for the pruned head: the share of all of them, those that it lacks included).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from anydraft.bench.bench import machine_card
from anydraft.bench.markdown import table
from anydraft.bench.prompts import packaged_prompts
from anydraft.engine.pair import read_model_tokenizer
from anydraft.kernels import own_threads
from anydraft.methods.tli import intersection_map
from anydraft.models.load import LoadedModel, load_model
from anydraft.models.select import Quantization, SlotRunner, make_runner
from anydraft.vocab.bridge import Bridge

TEXTS, LENGTH = 8, 48


@dataclass(frozen=True)
class Contender:
    """``step`` draws the token after the context; ``argmax`` gives the ids that follow each prefix of a text."""

    name: str
    step: Callable[[], int]
    argmax: Callable[[Sequence[int]], list[int]]


def transformers_contender(name: str, loaded: LoadedModel, context: Sequence[int]) -> Contender:
    model, cache = loaded.model, DynamicCache()

    @torch.inference_mode()
    def fill() -> None:
        model(torch.tensor([list(context)]), past_key_values=cache, use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def step() -> int:
        output = model(torch.tensor([[7]]), past_key_values=cache, use_cache=True)
        cache.crop(-1)
        return int(output.logits[0, -1].argmax())

    @torch.inference_mode()
    def argmax(ids: Sequence[int]) -> list[int]:
        found: list[int] = model(torch.tensor([list(ids)]), use_cache=False).logits[0].argmax(-1).tolist()
        return found

    fill()
    return Contender(name, step, argmax)


def our_contender(
    name: str, runner: SlotRunner, context: Sequence[int], only: torch.Tensor | None
) -> Contender:
    runner.prefill(0, context, 0)

    def step() -> int:
        with own_threads():
            return int(runner.forward(0, [[7]], [len(context)], last_only=True, only=only)[0, -1].argmax())

    def argmax(ids: Sequence[int]) -> list[int]:
        best = runner.forward(1, [list(ids)], [0], only=only)[0].argmax(-1)
        found: list[int] = (best if only is None else only[best]).tolist()
        return found

    return Contender(name, step, argmax)


def contenders(draft: str, target: LoadedModel, context_length: int) -> tuple[list[Contender], Any]:
    """All ways to run ``draft``, and Transformers' argmax in float32."""
    exact = load_model(draft, dtype="float32", device=None)
    plain = load_model(draft, dtype="bfloat16", device=None)
    tokenizer = read_model_tokenizer(plain)
    bridge = Bridge(read_model_tokenizer(target).vocabulary, tokenizer.vocabulary)
    shared = intersection_map(bridge, target.vocab_size).allowed
    assert shared is not None
    context = [1 + i % 50 for i in range(context_length)]
    make = partial(load_model, draft, dtype="bfloat16", device=None)
    found = [transformers_contender("Transformers, bf16", plain, context)]
    kinds: tuple[tuple[str, Quantization], ...] = (("bf16", "none"), ("int8", "int8"), ("int4", "int4"))
    for name, quantization in kinds:
        runner = make_runner(make(), quantization=quantization)
        found.append(our_contender(f"ours, {name}", runner, context, None))
        if name == "int8":
            pruned = f"ours, int8, head of the {len(shared):,} tokens that tli can draw"
            found.append(our_contender(pruned, runner, context, shared))
    return found, (tokenizer, transformers_contender("", exact, context).argmax)


def measure(draft: str, target: LoadedModel, context_length: int, rounds: int) -> str:
    found, (tokenizer, exact) = contenders(draft, target, context_length)
    seconds: dict[str, list[float]] = {one.name: [] for one in found}
    for number in range(rounds + 3):
        for one in found:
            started = time.perf_counter()
            one.step()
            if number >= 3:
                seconds[one.name].append(time.perf_counter() - started)
    times = {name: 1e3 * statistics.median(all_of_it) for name, all_of_it in seconds.items()}
    texts = [tokenizer.encode(prompt.text)[:LENGTH] for prompt in packaged_prompts(TEXTS)]
    wanted = [exact(ids) for ids in texts]
    rows = []
    for one in found:
        pairs = [
            pair
            for ids, best in zip(texts, wanted, strict=True)
            for pair in zip(one.argmax(ids), best, strict=True)
        ]
        same = sum(a == b for a, b in pairs) / len(pairs)
        rows.append(
            (
                one.name,
                f"{times[one.name]:.1f}",
                f"{times[found[0].name] / times[one.name]:.1f}",
                f"{100 * same:.1f} %",
            )
        )
    return table([draft, "ms a step", "times as fast", "agreement"], rows, "lrrr")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument(
        "--drafts",
        nargs="+",
        default=["smollm2-135m-instruct", "gemma-3-270m", "qwen2.5-coder-0.5b-instruct"],
    )
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    target = load_model(options.target, dtype=None, device=None)
    print(machine_card(), "\n")
    for draft in options.drafts:
        print(measure(draft, target, options.context, options.rounds), "\n", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
