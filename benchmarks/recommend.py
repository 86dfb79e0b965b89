"""What `anydraft recommend` predicts, beside what is measured: each draft's best method on the probe's own prompts.

    python benchmarks/recommend.py [--only TARGET ...] [--num-prompts 4] [--max-tokens 48] [--out recommend.json]

Results are kept in ``--out``, so that targets may be measured in several calls; the table shows all that are there.
The target alone and the recommended configuration run in turn, prompt by prompt; speed-ups leave out the time in
which the target reads prompts. An idle machine is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydraft.bench.markdown import table
from anydraft.bench.measure import EngineConfiguration, Series, measure
from anydraft.bench.prompts import BenchPrompt, packaged_prompts
from anydraft.bench.recommend import RecommendOptions, recommend
from anydraft.bench.recommend_report import Candidate
from anydraft.engine import Engine
from anydraft.rules.params import SamplingParams

SMOLLM2, GEMMA = "smollm2-135m-instruct", "gemma-3-270m"
LARGE, SMALL = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
DRAFTS = {
    LARGE: (SMOLLM2, GEMMA, SMALL),
    SMALL: (SMOLLM2, GEMMA),
    GEMMA: (SMOLLM2,),
}


def speed(series: Series) -> float:
    """Tokens a second after the prompt was read."""
    return sum(r.num_tokens for r in series.runs) / sum(r.seconds - r.stats.prefill_time for r in series.runs)


def measured(
    target: Any, candidate: Candidate, prompts: Sequence[BenchPrompt], params: SamplingParams
) -> dict[str, Any]:
    alone = Engine(target, method="none", max_num_seqs=1)
    drafting = Engine(
        target,
        candidate.draft,
        method=candidate.method,
        num_speculative_tokens=candidate.num_speculative_tokens,
        max_num_seqs=1,
    )
    configurations = [EngineConfiguration("AR", alone), EngineConfiguration("drafting", drafting)]
    baseline, series = measure(configurations, prompts, params, 1)
    same, outputs = series.same_outputs(baseline)
    return {
        "speedup": speed(series) / speed(baseline),
        "acceptance_length": series.stats.acceptance_length,
        "same": f"{same} of {outputs}",
    }


def run(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Recommend for one target, then measure everything that was ranked."""
    target = Engine(name, method="none", max_num_seqs=1).pair.target
    prompts = packaged_prompts(options.num_prompts)
    report = recommend(RecommendOptions(target, DRAFTS[name], max_tokens=options.max_tokens), prompts)
    print(report.to_markdown(), file=sys.stderr, flush=True)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
    rows = []
    for candidate in report.ranking:
        rows.append(
            {
                "target": name,
                "draft": candidate.draft or "-",
                "method": candidate.method,
                "tokens": candidate.num_speculative_tokens,
                "predicted": candidate.speedup,
                "predicted_acceptance": candidate.acceptance_length,
                **measured(target, candidate, prompts, params),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        gc.collect()
    return rows


def to_markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    header = ["target", "draft", "method", "tokens", "acceptance length, predicted", "measured"]
    header += ["speed-up, predicted", "measured", "error", "same output"]
    cells = [
        (
            row["target"],
            row["draft"],
            row["method"],
            row["tokens"],
            f"{row['predicted_acceptance']:.2f}",
            f"{row['acceptance_length']:.2f}",
            f"{row['predicted']:.2f}",
            f"{row['speedup']:.2f}",
            f"{100 * (row['predicted'] / row['speedup'] - 1):+.0f} %",
            row["same"],
        )
        for rows in results.values()
        for row in rows
    ]
    lines = [table(header, cells, "lllrrrrrrr"), ""]
    for name, rows in results.items():
        order = sorted(rows, key=lambda row: -row["speedup"])
        verdict = "as measured" if order == rows else f"measured: {', '.join(row['draft'] for row in order)}"
        lines.append(f"Ranking for {name}: {verdict}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(DRAFTS), help="this target; may be given again"
    )
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--out", type=Path, default=Path("recommend.json"))
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.is_file() else {}
    for name in options.only or list(DRAFTS):
        results[name] = run(name, options)
        options.out.write_text(json.dumps(results, indent=1))
    print(to_markdown(results))


if __name__ == "__main__":
    main()
