"""Checks on a GPU what the tests check on a CPU, and what only a GPU shows; without a network, in minutes.

    scripts/gpu_check.sh [PYTHON] [--only PART ...] [--limit SECONDS]

Needs anydraft's dependencies beside PYTHON, and vLLM or SGLang for their parts. Each part is a process of its own:

methods   greedy text in float32 is the target's own with every method (tiny random models)
graphs    steps captured as CUDA graphs give the ids of steps run eagerly, and what both take
shapes    a pair of real shapes in bfloat16: tokens a second of the target alone, slem and auto, and the same text
vllm      such a pair in vLLM, alone and with the plugin: the same text, and what was accepted
sglang    the same in SGLang

``--device cpu`` runs them on small models, to try the checks themselves. Exit code 1 if a part fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from scripts.spelling_models import (
    QWEN_1_5B,
    QWEN_7B,
    SMALL,
    SMALLER,
    SMOLLM2_135M,
    prompt,
    spelling_model,
)
from tests import tiny

LIMIT = 450.0
"""Seconds for everything."""
MAX_TOKENS = 64
K = 4
PROMPTS = (100, 80, 60, 40)
"""Characters of each row's prompt."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART")
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
        return report(options.part, PARTS[options.part](device))
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"device: {name}, torch {torch.__version__}", flush=True)
    until = time.monotonic() + options.limit
    failed = [part for part in options.only if not passed(part, options.device, until - time.monotonic())]
    print(f"gpu_check: {'FAILED: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


def passed(part: str, device: str, seconds: float) -> bool:
    """Run a part, which may take so long."""
    if part in HOSTS and importlib.util.find_spec(part) is None:
        print(f"{part}: not installed, not checked", flush=True)
        return True
    if seconds <= 0:
        print(f"{part}: FAILED: no time is left", flush=True)
        return False
    command = [sys.executable, "-m", "scripts.gpu_check", "--device", device, "--part", part]
    try:
        return subprocess.run(command, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{part}: FAILED: not done after {seconds:.0f} s", flush=True)
        return False


def report(part: str, wrong: list[str]) -> int:
    print(f"{part}: {'FAILED: ' + '; '.join(wrong) if wrong else 'passed'}", flush=True)
    return 1 if wrong else 0


def check_methods(device: torch.device) -> list[str]:
    import anydraft

    target, target_tokenizer = tiny.llama()
    draft, draft_tokenizer = tiny.gemma3()
    pair = (target.to(device), target_tokenizer), (draft.to(device), draft_tokenizer)
    params = anydraft.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)

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
    from anydraft.models.runner import ModelRunner
    from tests.models.tape import TapeRecorder

    shape = SMOLLM2_135M if device.type == "cuda" else SMALLER
    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        model = spelling_model(shape, tiny.sentencepiece_like(), device, dtype)
        start = tiny.sentencepiece_like().encode(prompt(300))

        def decode(
            recorder: Any, rows: int, model: Any = model, start: Any = start
        ) -> tuple[Any, float, bool]:
            """Ids of each row, median milliseconds of a step, and whether steps were replayed."""
            runner = ModelRunner(model, 1024, recorder)
            # The longest row grows past a bucket's edge, 256.
            lengths = [240 - 7 * row for row in range(rows)]
            for i, length in enumerate(lengths):
                runner.prefill(i, start[:length], 0)
            ids, times = [[start[length]] for length in lengths], []
            for step in range(30):
                started = time.perf_counter()
                logits = runner.forward(
                    0, [row[-1:] for row in ids], [n + step for n in lengths], last_only=True
                )
                drawn = logits[:, 0].argmax(-1).tolist()
                times.append(1000 * (time.perf_counter() - started))
                for row, token in zip(ids, drawn, strict=True):
                    row.append(token)
            return ids, statistics.median(times), bool(runner._graphs and runner._graphs.buckets)

        for rows in (1, 5):
            what = f"{str(dtype).removeprefix('torch.')}, {rows} rows"
            eager_ids, eager, _ = decode(None, rows)
            recorder: Any = CudaRecorder(device) if device.type == "cuda" else TapeRecorder()
            ids, captured, replayed = decode(recorder, rows)
            print(f"{shape.name}, {what}: a step {eager:.2f} ms eagerly, {captured:.2f} ms captured")
            if not replayed:
                wrong.append(f"{what}: not captured")
            if ids != eager_ids:
                wrong.append(f"{what}: other ids")
    return wrong


def check_shapes(device: torch.device) -> list[str]:
    import anydraft

    shapes = (QWEN_7B, SMOLLM2_135M) if device.type == "cuda" else (SMALL, SMALLER)
    models = [
        (spelling_model(shape, tokenizer, device, torch.bfloat16), tokenizer)
        for shape, tokenizer in zip(shapes, tokenizers(), strict=True)
    ]
    print(f"{shapes[0].name} <- {shapes[1].name}, {K} draft tokens a step")
    engine = anydraft.Engine(*models, method="slem", num_speculative_tokens=K, device=device.type)
    params = anydraft.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    wrong = []
    for rows in (1, len(PROMPTS)):
        texts = [prompt(length) for length in PROMPTS[:rows]]
        alone: dict[str, Any] = {}
        for method in ("none", "slem", "auto"):
            configured = engine.with_method(method, max_num_seqs=rows)
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
            if method == "slem" and length < K:
                wrong.append(
                    f"{rows} rows: slem's drafts are accepted {length:.2f} tokens a step, expected {K} or more"
                )
    return wrong


def check_vllm(device: torch.device) -> list[str]:
    from anydraft.bench.vllm_drafting import with_plugin
    from tests.plugins import run_vllm

    cuda = device.type == "cuda"
    common: dict[str, Any] = {
        "max_model_len": 512,
        "max_num_seqs": len(PROMPTS),
        "enable_prefix_caching": False,
    }
    common |= {"gpu_memory_utilization": 0.5} if cuda else {}

    def run(folder: Path, drafting: str | None) -> Any:
        plugin = with_plugin(str(folder / "draft"), K, method=drafting) if drafting else {}
        given = {"model": str(folder / "target"), "dtype": "bfloat16", **common, **plugin}
        done = run_vllm.start(given, encoded(), max_tokens=MAX_TOKENS)
        return marked(done, run_vllm.MARK)

    return same_in_host(device, run, ("slem", "tli", "auto"))


def check_sglang(device: torch.device) -> list[str]:
    from tests.plugins import run_sglang, sglang_cpu

    cuda = device.type == "cuda"
    common: dict[str, Any] = {
        "mem_fraction_static": 0.5,
        "context_length": 512,
        "max_running_requests": len(PROMPTS),
    }
    common |= {} if cuda else sglang_cpu.ENGINE
    environment = dict(os.environ) if cuda else sglang_cpu.environment()

    def run(folder: Path, drafting: str | None) -> Any:
        plugin = {}
        if drafting:
            plugin = {
                "speculative_algorithm": f"ANYDRAFT_{drafting.upper()}",
                "speculative_draft_model_path": str(folder / "draft"),
                "speculative_num_steps": K,
            }
        given = {"model_path": str(folder / "target"), "dtype": "bfloat16", "log_level": "error", **common}
        arguments = {
            "engine": given | plugin,
            "prompts": encoded(),
            "max_tokens": MAX_TOKENS,
        }
        command = [sys.executable, "-W", "ignore", run_sglang.__file__, json.dumps(arguments)]
        return marked(
            subprocess.run(command, env=environment, capture_output=True, text=True), run_sglang.MARK
        )

    return same_in_host(device, run, ("slem", "tli"))


def same_in_host(
    device: torch.device, run: Callable[[Path, str | None], Any], methods: tuple[str, ...]
) -> list[str]:
    """Whether the pair's text is the target's own with each method, by ``run`` of a folder with both models."""
    shapes = (QWEN_1_5B, SMOLLM2_135M) if device.type == "cuda" else (SMALL, SMALLER)
    wrong = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, shape, tokenizer in zip(("target", "draft"), shapes, tokenizers(), strict=True):
            model = spelling_model(shape, tokenizer, device, torch.bfloat16)
            model.save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
            del model
        if device.type == "cuda":
            torch.cuda.empty_cache()
        alone = run(folder, None)
        for method in methods:
            started = time.perf_counter()
            result = run(folder, method)
            print(
                f"{method}: {accepted(result)}, {time.perf_counter() - started:.0f} s with the start",
                flush=True,
            )
            if result["outputs"] != alone["outputs"]:
                wrong.append(f"{method} writes another text")
    return wrong


def accepted(result: Mapping[str, Any]) -> str:
    """Of what a host counted."""
    if "steps" in result:
        return f"{MAX_TOKENS * len(PROMPTS) / max(sum(result['steps']), 1):.2f} tokens a step"
    counters = result["counters"]
    drafted, taken = (counters.get(f"spec_decode_num_{kind}_tokens", 0) for kind in ("draft", "accepted"))
    return f"{taken:.0f} of {drafted:.0f} draft tokens accepted"


def marked(done: subprocess.CompletedProcess[str], mark: str) -> Any:
    found = [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]
    if not found:
        raise SystemExit(f"the host did not come to its end:\n{(done.stdout + done.stderr)[-3000:]}")
    return json.loads(found[0])


def tokenizers() -> tuple[Any, Any]:
    return tiny.byte_level(), tiny.sentencepiece_like()


def encoded() -> list[list[int]]:
    return [tiny.byte_level().encode(prompt(length)) for length in PROMPTS]


HOSTS = ("vllm", "sglang")
PARTS: dict[str, Callable[[torch.device], list[str]]] = {
    "methods": check_methods,
    "graphs": check_graphs,
    "shapes": check_shapes,
    "vllm": check_vllm,
    "sglang": check_sglang,
}


if __name__ == "__main__":
    sys.exit(main())
