"""Sampling: acceptance, draft rows and predicted speed of each method, rule and draft temperature.

    python benchmarks/sampling.py TARGET DRAFT [--num-prompts 20] [--positions 6] [--json FILE]

The first table is worked out from probabilities at positions along the target's own samples; a sampled SLEM is
taken as the string rule's law checked by exact match. The second is what the engine does with the same seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from first_position import FirstPosition, Key, Measured
from forward_times import Times, forward_times

from anydraft.bench.bench import machine_card
from anydraft.bench.markdown import table
from anydraft.bench.prompts import BenchPrompt, packaged_prompts
from anydraft.bench.serve_all import serve_all
from anydraft.engine import Engine, RequestStats
from anydraft.engine.prompts import has_chat_template
from anydraft.methods.base import Prompt
from anydraft.rules.params import SamplingParams
from anydraft.rules.sampling import History, probabilities

RATIOS = (3, 5, 10, 20, 50, 100)
ENGINE_RUNS = (
    ("slem", 0.0, ("rejection",)),
    ("tli", 1.0, ("rejection", "block", "coupled")),
    ("tli", 0.7, ("rejection", "block", "coupled")),
    ("slrs", 1.0, ("rejection", "block", "coupled")),
    ("slrs", 0.7, ("rejection", "block", "coupled")),
    ("slem", 0.7, ("coupled",)),
)


@dataclass(frozen=True)
class Line:
    """The mean of one method over all positions."""

    temperature: float
    method: str
    settings: str
    acceptance: float
    error: float
    """Standard error of the mean acceptance."""
    rows: float
    forwards: float
    refused: float
    positions: int
    speedup: float
    length: int
    accepted: tuple[float, ...]
    """At each position."""


@torch.inference_mode()
def first_positions(
    engine: Engine, prompts: Sequence[BenchPrompt], temperature: float, options: argparse.Namespace
) -> dict[Key, list[Measured]]:
    """Every method at ``options.positions`` places of the target's own sample of each prompt."""
    params = [
        SamplingParams(temperature=temperature, max_tokens=options.max_tokens, seed=i)
        for i in range(len(prompts))
    ]
    alone = engine.with_method("none", max_num_seqs=8)
    results = serve_all(alone, prompts, params)
    measure = FirstPosition(engine)
    found: dict[Key, list[Measured]] = defaultdict(list)
    for number, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        asked = _prompt(engine, prompt, temperature)
        assert asked.target_ids == result.prompt_token_ids
        chosen = _spread(len(result.token_ids), options.positions)
        rows = _own_rows(engine, result.prompt_token_ids, result.token_ids, params[number])
        for place, at in enumerate(chosen):
            p = rows[at].double()
            paper = place < options.paper_positions
            key = f"prompt-{number}"
            for name, one in measure.measure(
                asked, result.token_ids[:at], p / p.sum(), key, paper=paper
            ).items():
                found[name].append(one)
        assert engine.pair.backend is not None
        engine.pair.backend.release(f"prompt-{number}")
        _say(f"T={temperature:g}: prompt {number + 1} of {len(prompts)}")
    return found


def _prompt(engine: Engine, prompt: BenchPrompt, temperature: float) -> Prompt:
    chat = prompt.messages is not None and has_chat_template(engine.pair.target)
    encoded = engine.encode(prompt.messages if chat else prompt.text, chat=chat)
    return Prompt(encoded.target_ids, encoded.draft_ids, temperature)


def _spread(length: int, count: int) -> list[int]:
    """``count`` places of ``length``, evenly."""
    return sorted({(2 * i + 1) * length // (2 * count) for i in range(count)})


def _own_rows(
    engine: Engine, prompt_ids: Sequence[int], output: Sequence[int], params: SamplingParams
) -> torch.Tensor:
    """p, [len(output), V]: row i after ``output[:i]``."""
    runner = engine.pair.runner
    if len(prompt_ids) > 1:
        runner.prefill(0, prompt_ids[:-1], 0)
    logits = runner.forward(0, [[prompt_ids[-1], *output[:-1]]], [len(prompt_ids) - 1])[0]
    history = History(prompt_ids, (), engine.pair.target.stop_ids)
    return probabilities(logits, params, history, output[:-1])


def lines_of(found: dict[Key, list[Measured]], temperature: float, times: Times) -> Iterator[Line]:
    methods = list(dict.fromkeys(method for method, _ in found))
    in_turn = sorted(found.items(), key=lambda item: methods.index(item[0][0]))
    for (method, settings), all_of_it in in_turn:
        acceptance = [one.acceptance for one in all_of_it]
        mean = statistics.fmean(acceptance)
        rows = statistics.fmean(one.rows for one in all_of_it)
        forwards = statistics.fmean(one.forwards for one in all_of_it)
        length, speedup = times.best(mean, rows, forwards)
        error = statistics.stdev(acceptance) / len(acceptance) ** 0.5 if len(acceptance) > 1 else 0.0
        refused = statistics.fmean(one.refused for one in all_of_it)
        yield Line(
            temperature,
            method,
            settings,
            mean,
            error,
            rows,
            forwards,
            refused,
            len(acceptance),
            speedup,
            length,
            tuple(round(one, 5) for one in acceptance),
        )


def engine_runs(
    engine: Engine, prompts: Sequence[BenchPrompt], temperature: float, options: argparse.Namespace
) -> list[dict[str, object]]:
    """Tokens a target call and the draft's share of the time, by method and rule, on the same seeds."""
    runs = []
    params = [
        SamplingParams(temperature=temperature, max_tokens=options.engine_tokens, seed=i, ignore_eos=True)
        for i in range(len(prompts))
    ]
    for method, draft_temperature, rules in ENGINE_RUNS:
        for rule in rules:
            configured = engine.with_method(
                method,
                num_speculative_tokens=options.num_speculative_tokens,
                verification=rule,
                draft_temperature=draft_temperature,
                max_num_seqs=1,
            )
            total = RequestStats()
            before = getattr(engine.pair.backend, "num_forwards", 0)
            for result in serve_all(configured, prompts, params):
                total.add(result.stats)
            forwards = getattr(engine.pair.backend, "num_forwards", 0) - before
            shown = "exact match" if method == "slem" and not draft_temperature else rule
            runs.append(
                {
                    "temperature": temperature,
                    "method": method,
                    "draft_temperature": draft_temperature,
                    "rule": shown,
                    "acceptance_length": total.acceptance_length,
                    "draft_rows": total.num_draft_model_tokens / max(total.num_draft_tokens, 1),
                    "draft_forwards": forwards / max(total.num_draft_tokens, 1),
                    "draft_share": total.draft_time / (total.draft_time + total.target_time),
                }
            )
            _say(f"engine: {runs[-1]}")
    return runs


def first_table(lines: Sequence[Line]) -> str:
    rows = [
        (
            f"{line.temperature:g}",
            line.method,
            line.settings,
            f"{line.acceptance:.3f} ± {line.error:.3f}",
            f"{line.rows:.2f}",
            f"{line.forwards:.2f}",
            f"{line.refused:.2f}" if line.method == "paper" else "",
            line.positions,
            f"{line.speedup:.2f} ({line.length})",
        )
        for line in lines
    ]
    header = [
        "T",
        "method",
        "settings",
        "accepted",
        "draft rows",
        "forwards",
        "refused",
        "positions",
        "speed (drafts)",
    ]
    return table(header, rows, "rllrrrrrr")


def difference_table(lines: Sequence[Line]) -> str:
    """Each method's best settings against the others', position by position."""
    rows = []
    for temperature in sorted({line.temperature for line in lines}, reverse=True):
        best = {
            method: max(
                (one for one in lines if (one.temperature, one.method) == (temperature, method)),
                key=lambda one: one.acceptance,
            )
            for method in ("slrs", "tli", "slem", "hybrid, at most")
        }
        for method in ("slrs", "hybrid, at most"):
            for other in ("tli", "slem", "slrs"):
                if method == other:
                    continue
                mine, theirs = best[method], best[other]
                gains = [a - b for a, b in zip(mine.accepted, theirs.accepted, strict=True)]
                error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
                names = (f"{mine.method}, {mine.settings}", f"{theirs.method}, {theirs.settings}")
                rows.append((f"{temperature:g}", *names, f"{statistics.fmean(gains):+.3f} ± {error:.3f}"))
    return table(["T", "best of", "less the best of", "accepted more"], rows, "rllr")


def ratio_table(lines: Sequence[Line], times: Times) -> str:
    """The best settings of each method, as if the target were cheaper or dearer."""
    rows = []
    for temperature in sorted({line.temperature for line in lines}, reverse=True):
        for method in ("tli", "slem", "slrs"):
            own = [one for one in lines if (one.temperature, one.method) == (temperature, method)]
            best = [
                max((times.best(o.acceptance, o.rows, o.forwards, ratio)[1], o.settings) for o in own)
                for ratio in RATIOS
            ]
            rows.append(
                (f"{temperature:g}", method, *(f"{speed:.2f} {settings}" for speed, settings in best))
            )
    return table(["T", "method", *(f"target = {ratio} draft forwards" for ratio in RATIOS)], rows, "rl")


def engine_table(runs: Sequence[dict[str, object]]) -> str:
    header = [
        "T",
        "method",
        "draft at",
        "rule",
        "tokens a target call",
        "draft rows a token",
        "forwards a token",
        "draft's share of time",
    ]
    rows = [
        (
            f"{r['temperature']:g}",
            r["method"],
            f"{r['draft_temperature']:g}",
            r["rule"],
            f"{r['acceptance_length']:.2f}",
            f"{r['draft_rows']:.2f}",
            f"{r['draft_forwards']:.2f}",
            f"{r['draft_share']:.2f}",
        )
        for r in runs
    ]
    return table(header, rows, "rlrlrrrr")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.7])
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--positions", type=int, default=6, help="of each prompt's sample")
    parser.add_argument(
        "--paper-positions", type=int, default=2, help="of those, so many for the paper's form too"
    )
    parser.add_argument("--max-tokens", type=int, default=32, help="of the samples along which positions lie")
    parser.add_argument("--engine-prompts", type=int, default=4, help="0: no second table")
    parser.add_argument("--engine-tokens", type=int, default=32)
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--dtype", help="of the target; by default chosen")
    parser.add_argument("--draft-quantization", default="auto")
    parser.add_argument("--json", type=Path, help="write everything there too")
    options = parser.parse_args()
    prompts = packaged_prompts(options.num_prompts)
    engine = Engine(
        options.target,
        options.draft,
        method="slem",
        dtype=options.dtype,
        draft_quantization=options.draft_quantization,
    )
    pair = engine.pair
    assert pair.backend is not None
    times = forward_times(pair.runner, pair.backend)
    _say(f"times: {times}")
    lines: list[Line] = []
    runs: list[dict[str, object]] = []
    for temperature in options.temperatures:
        lines += lines_of(first_positions(engine, prompts, temperature, options), temperature, times)
        if options.engine_prompts:
            runs += engine_runs(engine, prompts[: options.engine_prompts], temperature, options)
    card = machine_card()
    drafted = f"draft {options.draft}, weights {options.draft_quantization}"
    print(f"Target {options.target}, {pair.target.dtype}; {drafted}; {card}\n")
    milliseconds = {name: {n: round(1e3 * s, 2) for n, s in of.items()} for name, of in asdict(times).items()}
    print(
        f"Forwards, ms: target by tokens {milliseconds['target']}, draft by rows {milliseconds['draft']}.\n"
    )
    print(f"{first_table(lines)}\n\n{difference_table(lines)}\n\n{ratio_table(lines, times)}")
    if runs:
        print(f"\n{engine_table(runs)}")
    if options.json:
        record = {"target": options.target, "draft": options.draft, "machine": card, "times": asdict(times)}
        record |= {"first_position": [asdict(line) for line in lines], "engine": runs}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
