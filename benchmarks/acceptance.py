"""Acceptance length of each method with each draft, greedy, 5 drafts a step, on published prompts.

    python benchmarks/acceptance.py [--num-prompts 15] [--draft-quantization auto] [--max-tokens 80]

Acceptance does not depend on the speed of the machine; times are not reported.
"""

from __future__ import annotations

import argparse
import sys

from anydraft.bench.bench import machine_card
from anydraft.bench.markdown import table
from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.serve_all import serve_all
from anydraft.engine import Engine
from anydraft.rules.params import SamplingParams

TARGET = "qwen2.5-coder-1.5b-instruct"
PAIRS = [
    ("smollm2-135m-instruct", ["slem", "tli"]),
    ("gemma-3-270m", ["slem", "tli"]),
    ("qwen2.5-coder-0.5b-instruct", ["standard"]),
]
# The first five are the published set; the others were tried beside them and are in docs/results/acceptance.md.
TEXTS = {
    "code/factorial": 'def factorial(n):\n    """Return n! computed recursively."""\n',
    "code/bubble_sort": 'def bubble_sort(items):\n    """Sort a list in place with bubble sort."""\n',
    "prose/european_union": "The European Union is a political and economic union of",
    "prose/machine_learning": "Machine learning is a branch of artificial intelligence that",
    "prose/einstein": "Albert Einstein was a German-born theoretical physicist who",
    "code/csv": 'import csv\n\n\ndef read_rows(path):\n    """Read a CSV file into a list of dictionaries."""\n',
    "code/fibonacci": 'def fibonacci(n):\n    """Return the first n Fibonacci numbers as a list."""\n',
    "code/json": 'import json\n\n\ndef load_config(path):\n    """Load a JSON configuration file."""\n',
    "code/stack": 'class Stack:\n    """A stack with push, pop and peek."""\n\n    def __init__(self):\n',
    "prose/tides": "The tide comes in twice a day because",
    "prose/paris": "Paris is the capital of France. It is known for",
    "prose/water": "Water boils at 100 degrees Celsius at sea level. At higher altitudes,",
    "prose/photosynthesis": "Photosynthesis is the process by which plants",
    "prose/war": "World War II began in 1939 when",
    "prose/essay": "Here are five steps to write a good essay:\n\n1.",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draft-quantization", default="auto")
    parser.add_argument("--max-tokens", type=int, default=80)
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--only", help="measure this draft only")
    parser.add_argument(
        "--num-prompts", type=int, default=5, help="of 15; the first five are the published set"
    )
    options = parser.parse_args()
    prompts = [BenchPrompt(name, "", prompt=text) for name, text in TEXTS.items()][: options.num_prompts]
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    plain = Engine(TARGET, method="none", dtype="bfloat16", max_num_seqs=1)
    alone = serve_all(plain, prompts, [params] * len(prompts))
    rows = []
    for draft, methods in PAIRS:
        if options.only not in (None, draft):
            continue
        engine = Engine(
            plain.pair.target, draft, dtype="bfloat16", draft_quantization=options.draft_quantization
        )
        for method in methods:
            configured = engine.with_method(
                method, num_speculative_tokens=options.num_speculative_tokens, max_num_seqs=1
            )
            results = serve_all(configured, prompts, [params] * len(prompts))
            lengths = [len(r.token_ids) / r.stats.num_steps for r in results]
            steps = sum(r.stats.num_steps for r in results)
            total = sum(len(r.token_ids) for r in results) / steps
            same = sum(a.token_ids == b.token_ids for a, b in zip(alone, results, strict=True))
            rows.append(
                (draft, method, *(f"{n:.2f}" for n in lengths), f"{total:.2f}", f"{same} of {len(results)}")
            )
            print(rows[-1], file=sys.stderr, flush=True)
    print(
        f"{TARGET}, bf16, draft weights {options.draft_quantization}, {options.max_tokens} tokens; {machine_card()}\n"
    )
    print(table(["draft", "method", *(p.id for p in prompts), "all", "same as AR"], rows, "llrrrrrrr"))


if __name__ == "__main__":
    main()
