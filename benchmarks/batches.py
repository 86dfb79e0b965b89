"""Speed by batch size, by number of drafts and by length of the context: the target alone, auto and slem.

    python benchmarks/batches.py [TARGET [DRAFT]] [--batch-size N ...] [--drafts N ...] [--context N ...]

Batches: total tok/s of as many requests as run at once, beside the target alone at the same batch, in alternating
order. Drafts: what a step of slem takes with so many draft tokens. Contexts: what a step takes after a prompt of so
many tokens, and on what.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from anydraft.bench.bench import machine_card
from anydraft.bench.markdown import table
from anydraft.bench.measure import EngineConfiguration, Series, measure
from anydraft.bench.prompts import packaged_prompts
from anydraft.bench.serve_all import target_ids
from anydraft.engine import Engine, RequestStats
from anydraft.rules.params import SamplingParams

NAMES = {"none": "AR"}


@dataclass(frozen=True)
class Steps:
    """What the steps of one request took, seconds in all; ``seconds`` holds everything after the prompt."""

    stats: RequestStats
    seconds: float
    num_tokens: int

    @property
    def milliseconds(self) -> float:
        return 1000 * self.seconds / self.stats.num_steps

    def share(self, seconds: float) -> str:
        return f"{100 * seconds / self.seconds:.0f} %"


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def batches(
    engine: Engine, methods: Sequence[str], sizes: Sequence[int], groups: int, max_tokens: int
) -> str:
    """A row a batch size and method; ``groups`` batches each."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    rows = []
    for size in sizes:
        prompts = packaged_prompts(size * groups)
        configurations = [
            EngineConfiguration(NAMES.get(m, m), engine.with_method(m, max_num_seqs=size)) for m in methods
        ]
        series = measure(configurations, prompts, params, size, progress)
        rows += [_batch_row(size, one, series[0]) for one in series]
    header = [
        "batch",
        "",
        "tok/s",
        "over AR, median",
        "least",
        "decode only",
        "acceptance length",
        "drafting",
    ]
    return table([*header, "same output"], rows, "rlrrrrrrr")


def _batch_row(size: int, series: Series, alone: Series) -> tuple[object, ...]:
    same, outputs = series.same_outputs(alone)
    ratios = series.ratios(alone)
    return (
        size,
        series.name,
        f"{series.tokens_per_second:.2f}",
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f}",
        f"{statistics.median(series.decode_ratios(alone)):.2f}",
        f"{series.stats.acceptance_length:.2f}",
        f"{100 * series.stats.draft_time / sum(run.seconds for run in series.runs):.0f} %",
        f"{same} of {outputs}",
    )


def drafts(engine: Engine, counts: Sequence[int], num_prompts: int, max_tokens: int) -> str:
    """A row a number of draft tokens, batch 1; the first is the target alone."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    configurations = [EngineConfiguration("AR", engine.with_method("none", max_num_seqs=1))]
    for count in counts:
        slem = engine.with_method("slem", num_speculative_tokens=count, max_num_seqs=1)
        configurations.append(EngineConfiguration(str(count), slem))
    series = measure(configurations, packaged_prompts(num_prompts), params, 1, progress)
    rows = []
    for one in series:
        stats = one.stats
        step = 1000 * sum(run.decode_seconds for run in one.runs) / stats.num_steps
        rows.append(
            (
                one.name,
                f"{step:.1f}",
                f"{1000 * stats.target_time / stats.num_steps:.1f}",
                f"{1000 * stats.draft_time / stats.num_steps:.1f}",
                f"{stats.acceptance_length:.2f}",
                f"{statistics.median(one.decode_ratios(series[0])):.2f}",
            )
        )
    header = ["drafts", "ms a step", "target", "draft", "acceptance length", "decode over AR, median"]
    return table(header, rows, "lrrrrr")


def contexts(engine: Engine, methods: Sequence[str], lengths: Sequence[int], max_tokens: int) -> str:
    """A row a length of the prompt and method."""
    target = engine.pair.target
    text = [i for p in packaged_prompts(10, ["summary"]) for i in target_ids(target, p)]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    rows = []
    for length in lengths:
        if length + max_tokens > target.max_context:
            progress(f"{length} tokens and {max_tokens} more are beyond the target's {target.max_context}")
            continue
        prompt = (text * (1 + length // len(text)))[:length]
        for method in methods:
            steps = _run(engine.with_method(method, max_num_seqs=1), prompt, params)
            progress(f"{length} tokens, {NAMES.get(method, method)}: {steps.milliseconds:.1f} ms a step")
            stats = steps.stats
            rest = steps.seconds - stats.target_time - stats.draft_time
            rows.append(
                (
                    length,
                    NAMES.get(method, method),
                    f"{stats.prefill_time:.2f}",
                    f"{steps.milliseconds:.1f}",
                    steps.share(stats.target_time),
                    steps.share(stats.draft_time),
                    steps.share(rest),
                    f"{stats.acceptance_length:.2f}",
                    f"{steps.num_tokens / steps.seconds:.2f}",
                )
            )
    header = ["context", "", "prompt, s", "ms a step", "target", "draft", "rest", "acceptance length"]
    return table([*header, "decode tok/s"], rows, "rlrrrrrrr")


def _run(engine: Engine, prompt: list[int], params: SamplingParams) -> Steps:
    """One request, timed from the end of the target's reading of the prompt. The first step, in which the draft reads
    it too, is left out of all times."""
    started, tokens = 0.0, 0
    first = last = RequestStats()
    for delta in engine.stream(prompt, params):
        if not started:
            started = time.perf_counter()
            first.add(delta.stats)
            continue
        tokens += len(delta.token_ids)
        last = delta.stats
    seconds = time.perf_counter() - started
    stats = RequestStats(
        num_steps=last.num_steps - first.num_steps,
        num_accepted_tokens=last.num_accepted_tokens - first.num_accepted_tokens,
        draft_time=last.draft_time - first.draft_time,
        target_time=last.target_time - first.target_time,
        prefill_time=last.prefill_time,
    )
    return Steps(stats, seconds, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", nargs="?", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("draft", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--method", nargs="+", default=["auto", "slem"], help="beside the target alone")
    parser.add_argument("--batch-size", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--drafts", type=int, nargs="*", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--num-prompts", type=int, default=8, help="for the table of drafts")
    parser.add_argument("--context", type=int, nargs="*", default=[128, 512, 2048, 8192])
    parser.add_argument("--groups", type=int, default=2, help="batches of each size")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--dtype", default=None)
    options = parser.parse_args()
    engine = Engine(options.target, options.draft, dtype=options.dtype)
    print(f"# {options.target} <- {options.draft}\n\n{machine_card()}; greedy, {options.max_tokens} tokens\n")
    methods = ["none", *options.method]
    if options.batch_size:
        table_of_batches = batches(engine, methods, options.batch_size, options.groups, options.max_tokens)
        print(f"## Batches\n\n{table_of_batches}\n", flush=True)
    if options.drafts:
        table_of_drafts = drafts(engine, options.drafts, options.num_prompts, options.max_tokens)
        print(f"## Drafts\n\n{table_of_drafts}\n", flush=True)
    if options.context:
        print(f"## Contexts\n\n{contexts(engine, methods, options.context, options.max_tokens)}")


if __name__ == "__main__":
    main()
