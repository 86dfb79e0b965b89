"""Acceptance in SGLang: TLI with each way to read a token that the draft lacks, and SLEM; same output as AR.

    python benchmarks/sglang_plugin.py [--only NAME ...] [--max-tokens 48] [--out sglang_plugin.json]

Needs sglang 0.5.23 beside anydraft; on a CPU without SGLang's kernels also ``PYTHONPATH=tests/plugins/sglang_cpu``.
Each configuration runs in a process of its own and is kept in ``--out``; the table shows all that are there. It
tells tokens a step, which do not depend on the machine's load, and no speeds.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from own_process import in_process, read, tell

from anydraft.bench.markdown import table
from anydraft.models.locate import locate

TARGET = "qwen2.5-coder-0.5b-instruct"
SMOLLM2, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"
CODE = (
    "def fib(n):\n",
    'def quicksort(arr):\n    """Sort a list."""\n',
    "import numpy as np\n\ndef softmax(x):\n",
    "class LRUCache:\n    def __init__(self, capacity: int):\n",
)
PROSE = (
    "The capital of France is",
    "The most important thing about learning a language is",
    "Once upon a time, in a small village by the sea,",
    "Photosynthesis is the process by which",
)


def drafting(algorithm: str, draft: str, **variables: str) -> dict[str, Any]:
    return {"algorithm": algorithm, "draft": draft, "variables": variables}


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "AR": {},
    **{
        f"{name} <- {short}": drafting(algorithm, draft, **variables)
        for short, draft in (("SmolLM2", SMOLLM2), ("Gemma-3", GEMMA))
        for name, algorithm, variables in (
            ("TLI, end token for what is not common", "ANYDRAFT_TLI", {"ANYDRAFT_TLI_CONTEXT": "eos"}),
            ("TLI, last part of what is not common", "ANYDRAFT_TLI", {"ANYDRAFT_TLI_CONTEXT": "last"}),
            ("TLI", "ANYDRAFT_TLI", {"ANYDRAFT_TLI_CONTEXT": "retokenized"}),
            ("SLEM", "ANYDRAFT_SLEM", {}),
        )
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(CONFIGURATIONS), help="configurations to measure")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--num-steps", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("sglang_plugin.json"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        tell(measure(CONFIGURATIONS[options.measure], options))
        return
    for name in options.only:
        results = read(options.out)
        results[name] = in_process(__file__, name, environment_of(name))
        options.out.write_text(json.dumps(results))
    print(report(read(options.out)))


def environment_of(name: str) -> dict[str, str]:
    return dict(os.environ) | CONFIGURATIONS[name].get("variables", {})


def measure(configuration: dict[str, Any], options: argparse.Namespace) -> Any:
    import sglang

    given: dict[str, Any] = {
        "model_path": str(locate(options.target)),
        "dtype": "float32",
        "context_length": 2048,
        "max_total_tokens": 8192,
        "mem_fraction_static": 0.9,
        "max_running_requests": len(CODE + PROSE),
        "log_level": "error",
    }
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        given |= {"device": "cpu", "attention_backend": "intel_amx"}
    if configuration:
        given |= {
            "speculative_algorithm": configuration["algorithm"],
            "speculative_draft_model_path": str(locate(configuration["draft"])),
            "speculative_num_steps": options.num_steps,
        }
    engine = sglang.Engine(**given)
    sampling = {"temperature": 0, "max_new_tokens": options.max_tokens, "ignore_eos": True}
    results = engine.generate(list(CODE + PROSE), sampling)
    found = [
        {"ids": r["output_ids"], "steps": r["meta_info"].get("spec_verify_ct") or len(r["output_ids"])}
        for r in results
    ]
    engine.shutdown()
    return found


def report(results: dict[str, Any]) -> str:
    """One line a configuration; a step emits the accepted tokens and one of the target's own."""
    rows = []
    for name in (name for name in CONFIGURATIONS if name in results):
        found = results[name]
        same = sum(a["ids"] == b["ids"] for a, b in zip(found, results.get("AR", ()), strict=False))
        code, prose = tokens_a_step(found[: len(CODE)]), tokens_a_step(found[len(CODE) :])
        rows.append([name, f"{code:.2f}", f"{prose:.2f}", f"{same} of {len(found)}"])
    return table(["configuration", "tokens a step, code", "prose", "same as AR"], rows, "lrrr")


def tokens_a_step(found: list[dict[str, Any]]) -> float:
    """The first token is the prompt's and of no step."""
    drafted = any(r["steps"] < len(r["ids"]) for r in found)
    return sum(len(r["ids"]) - drafted for r in found) / sum(r["steps"] for r in found)


if __name__ == "__main__":  # SGLang starts its processes by importing this file again
    main()
