"""Checks on a GPU what the tests check on a CPU, and what only a GPU shows; without a network, in minutes.

    scripts/gpu_check.sh [PYTHON] [--only PART ...] [--limit SECONDS]

Needs anydraft's dependencies beside PYTHON, and for their parts vLLM or SGLang (which finds AnyDraft only where it is
installed). Each part is a process of its own:

methods   greedy text in float32 is the target's own with every method (tiny random models)
graphs    steps captured as CUDA graphs give the logits of steps run eagerly, and what both take
shapes    a pair of real shapes in bfloat16: the same text, and tokens a second of the target alone, slem and auto
vllm      such a pair in vLLM, alone and with the plugin: the same text, accepted; a random model that drafts for itself
sglang    the same in SGLang

``--device cpu`` runs them on small models, to try the checks themselves. Exit code 1 if a part fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import torch
import transformers

from scripts.gpu_check_hosts import ROOT, check_sglang, check_vllm
from scripts.spelling_models import QWEN_7B, SMALL, SMALLER, SMOLLM2_135M, STARTS, K, spelling_model
from tests import tiny
from tests.plugins.own_session import NoResultError

LIMIT = 450.0
"""Seconds for everything."""
_SECONDS_TO_END = 15
MAX_TOKENS = 60
_LEAST_GIB = 20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for everything")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: torch sees no CUDA device; run it on a machine that has one", file=sys.stderr)
        return 1
    transformers.utils.logging.disable_progress_bar()
    device = torch.device(options.device)
    if options.part:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what a part started ends with it
        try:
            return report(options.part, PARTS[options.part](device))
        except NoResultError as error:
            return report(options.part, [str(error)])
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"device: {name}, torch {torch.__version__}", flush=True)
    until = time.monotonic() + options.limit
    missing = {part: why for part in options.only or PARTS if (why := lacking(part))}
    for part, why in missing.items():
        print(f"{part}: not checked: {why}", flush=True)
    failed = [part for part in missing if options.only]
    for part in options.only or PARTS:
        if part not in missing and not passed(part, options.device, until - time.monotonic()):
            failed.append(part)
    print(f"gpu_check: {'FAILED: ' + ', '.join(failed) if failed else 'what was checked passed'}")
    return 1 if failed else 0


def lacking(part: str) -> str | None:
    """What a part needs that is not here."""
    if part in ("vllm", "sglang") and importlib.util.find_spec(part) is None:
        return f"{part} is not installed"
    if part == "sglang" and not entry_points(group="sglang.srt.plugins", name="anydraft"):
        return "anydraft is not installed beside SGLang"
    return None


def passed(part: str, device: str, seconds: float) -> bool:
    """Run a part, which may take so long."""
    if seconds <= 0:
        print(f"{part}: FAILED: no time is left", flush=True)
        return False
    command = [sys.executable, "-u", "-m", "scripts.gpu_check", "--device", device, "--part", part]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        print(f"{part}: FAILED: not done after {seconds:.0f} s", flush=True)
        process.terminate()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
        return False


def report(part: str, wrong: list[str]) -> int:
    print(f"{part}: {'FAILED: ' + '; '.join(wrong) if wrong else 'passed'}", flush=True)
    return 1 if wrong else 0


def check_methods(device: torch.device) -> list[str]:
    import anydraft

    target, target_tokenizer = tiny.llama()
    draft, draft_tokenizer = tiny.gemma3()
    pair = (target.to(device), target_tokenizer), (draft.to(device), draft_tokenizer)
    params = anydraft.SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)

    def ids(**options: Any) -> list[tuple[int, ...]]:
        engine = anydraft.Engine(pair[0], max_num_seqs=3, device=device.type, **options)
        return [result.token_ids for result in engine.generate(list(tiny.CORPUS[:3]), params)]

    alone = ids(method="none")
    drafts = {"lookup": None, "standard": pair[0]}
    methods = ("slem", "tli", "slrs", "lookup", "auto", "standard")
    return [
        f"{m} writes another text" for m in methods if ids(method=m, draft=drafts.get(m, pair[1])) != alone
    ]


def check_graphs(device: torch.device) -> list[str]:
    from anydraft.models.graphs import CudaRecorder
    from tests.models.tape import TapeRecorder

    shape = SMOLLM2_135M if device.type == "cuda" else SMALLER
    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        # Large weights: what attention reads decides what comes next.
        config = transformers.LlamaConfig(**shape.sizes, initializer_range=0.1)
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval().to(device, dtype)
        for rows in (1, 5):
            what = f"{str(dtype).removeprefix('torch.')}, {rows} rows"
            recorder: Any = CudaRecorder(device) if device.type == "cuda" else TapeRecorder()
            expected, eager, _ = steps(model, None, rows)
            logits, captured, replayed = steps(model, recorder, rows)
            print(f"{shape.name}, {what}: a step {eager:.2f} ms eagerly, {captured:.2f} ms captured")
            if not replayed:
                wrong.append(f"{what}: not captured")
            error = float((logits - expected).abs().max() / expected.abs().max())
            if not error <= (1e-3 if dtype == torch.float32 else 0.1):
                wrong.append(f"{what}: logits are off by {error:.3g} of the largest one")
    return wrong


def steps(model: Any, recorder: Any, rows: int) -> tuple[torch.Tensor, float, bool]:
    """Logits [30, rows, V] of steps over given ids, the median milliseconds of one, and whether they were replayed."""
    from anydraft.models.runner import ModelRunner

    runner = ModelRunner(model, 1024, recorder)
    # The longest row grows past a bucket's edge, 256.
    lengths = [240 - 7 * row for row in range(rows)]
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, model.config.vocab_size, (rows, 300), generator=generator).tolist()
    for row, length in enumerate(lengths):
        runner.prefill(row, ids[row][:length], 0)
    logits, times = [], []
    for step in range(30):
        starts = [length + step for length in lengths]
        started = time.perf_counter()
        fed = [row[at : at + 1] for row, at in zip(ids, starts, strict=True)]
        drawn = runner.forward(0, fed, starts, last_only=True)[:, 0]
        drawn.argmax(-1).tolist()
        times.append(1000 * (time.perf_counter() - started))
        logits.append(drawn.float().cpu())
    return torch.stack(logits), statistics.median(times), bool(runner._graphs and runner._graphs.buckets)


def check_shapes(device: torch.device) -> list[str]:
    import anydraft

    if device.type == "cuda" and (free := torch.cuda.mem_get_info()[0]) < _LEAST_GIB << 30:
        return [f"needs {_LEAST_GIB} GiB of the GPU's memory, {free / (1 << 30):.0f} are free"]
    shapes = (QWEN_7B, SMOLLM2_135M) if device.type == "cuda" else (SMALL, SMALLER)
    models = [
        (spelling_model(shape, tokenizer, device, torch.bfloat16), tokenizer)
        for shape, tokenizer in zip(shapes, (tiny.byte_level(), tiny.sentencepiece_like()), strict=True)
    ]
    print(f"{shapes[0].name} <- {shapes[1].name}, {K} draft tokens a step")
    engine = anydraft.Engine(*models, method="slem", device=device.type)
    params = anydraft.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    wrong = []
    for rows in (1, len(STARTS)):
        texts = list(STARTS[:rows])
        alone: dict[str, Any] = {}
        for method in ("none", "slem", "auto"):
            configured = engine.with_method(method, num_speculative_tokens=K, max_num_seqs=rows)
            configured.generate(texts, params)  # what is set up once
            started = time.perf_counter()
            results = configured.generate(texts, params)
            speed = MAX_TOKENS * rows / (time.perf_counter() - started)
            ids = [result.token_ids for result in results]
            alone = alone or {"ids": ids, "speed": speed}
            length = statistics.mean(result.stats.acceptance_length for result in results)
            print(
                f"{rows} rows, {method}: {speed:.1f} tok/s, {speed / alone['speed']:.2f} times the target alone, "
                f"{length:.2f} tokens a step {results[0].stats.decision}".rstrip()
            )
            if ids != alone["ids"]:
                wrong.append(f"{rows} rows: {method} writes another text")
            if method == "slem" and length < 0.8 * (K + 1):
                wrong.append(f"{rows} rows: slem's drafts bring {length:.2f} tokens a step of {K + 1}")
    return wrong


PARTS: dict[str, Callable[[torch.device], list[str]]] = {
    "methods": check_methods,
    "graphs": check_graphs,
    "shapes": check_shapes,
    "vllm": check_vllm,
    "sglang": check_sglang,
}


if __name__ == "__main__":
    sys.exit(main())
