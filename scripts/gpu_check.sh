#!/usr/bin/env bash
# Checks what needs a CUDA device, with random models and no network. Needs a CUDA device.
#
#     scripts/gpu_check.sh [PYTHON]     (a Python with anydraft and its tests' dependencies; minutes)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}

"$python" - <<'EOF'
import time

import torch

if not torch.cuda.is_available():
    raise SystemExit("gpu_check: torch sees no CUDA device; run it on a machine that has one")

import anydraft
from tests import tiny

print("device:", torch.cuda.get_device_name(0), "torch", torch.__version__)
target, target_tokenizer = tiny.llama()
draft, draft_tokenizer = tiny.gemma3()
pair = (target.cuda(), target_tokenizer), (draft.cuda(), draft_tokenizer)
params = anydraft.SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
prompts = list(tiny.CORPUS[:3])


def run(label, **options):
    engine = anydraft.Engine(pair[0], max_num_seqs=3, **options)
    engine.generate(prompts, params)  # what is set up once
    started = time.perf_counter()
    results = engine.generate(prompts, params)
    seconds = time.perf_counter() - started
    lengths = [f"{r.stats.acceptance_length:.2f}" for r in results]
    print(f"{label:28} {64 * len(prompts) / seconds:8.1f} tok/s, acceptance lengths {' '.join(lengths)}")
    return [r.token_ids for r in results]


alone = run("the target alone", method="none")
failed = []
for method in ("slem", "tli", "slrs", "lookup", "auto"):
    given = {} if method == "lookup" else {"draft": pair[1]}
    if run(method, method=method, **given) != alone:
        failed.append(method)
if run("standard, its own draft", method="standard", draft=pair[0]) != alone:
    failed.append("standard")
if failed:
    raise SystemExit(f"gpu_check: greedy text in float32 differs from the target's own: {', '.join(failed)}")
print("gpu_check: greedy text in float32 is the target's own with every method")
EOF

"$python" - <<'EOF'
# Steps of one token a row: captured as CUDA graphs against run eagerly. Equal ids, and the time of each.
import logging
import statistics
import time

import torch
import transformers

from anydraft.models.graphs import CudaRecorder
from anydraft.models.runner import ModelRunner

logging.basicConfig(level=logging.WARNING)
torch.manual_seed(0)
device = torch.device("cuda")
config = transformers.LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    # Large weights make peaked rows: the two ways may differ in a last bit, which must not decide.
    initializer_range=0.1,
)
model = transformers.LlamaForCausalLM(config).eval().to(device)
STEPS, START = 30, 240  # the longest row grows past a bucket's edge, 256


def decode(recorder, rows):
    """Greedy ids of each row, the median milliseconds of a step, and whether steps were replayed."""
    runner = ModelRunner(model, 2048, recorder)
    lengths = [START - 7 * row for row in range(rows)]
    generator = torch.Generator().manual_seed(1)
    for row, length in enumerate(lengths):
        runner.prefill(row, torch.randint(1, config.vocab_size, (length,), generator=generator).tolist(), 0)
    ids, times = [[1] for _ in range(rows)], []
    for step in range(STEPS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        logits = runner.forward(0, [row[-1:] for row in ids], [n + step for n in lengths], last_only=True)
        drawn = logits[:, 0].argmax(-1).tolist()
        times.append(1000 * (time.perf_counter() - started))
        for row, token in zip(ids, drawn, strict=True):
            row.append(token)
    return ids, statistics.median(times), bool(runner._graphs and runner._graphs.buckets)


failed = []
for dtype in (torch.float32, torch.bfloat16):
    model.to(dtype)
    name = str(dtype).removeprefix("torch.")
    for rows in (1, 5):
        eager_ids, eager, _ = decode(None, rows)
        ids, captured, replayed = decode(CudaRecorder(device), rows)
        same = sum(a == b for a, b in zip(ids, eager_ids, strict=True))
        print(
            f"{name}, {rows} rows: a step {eager:.2f} ms eagerly, {captured:.2f} ms captured; "
            f"{same} of {rows} rows have the same ids"
        )
        if not replayed:
            failed.append(f"{name}, {rows} rows: not captured (the reason is in the log above)")
        elif dtype == torch.float32 and same < rows:  # in bfloat16 ties may part the rows
            failed.append(f"{name}, {rows} rows: other ids")
if failed:
    raise SystemExit("gpu_check: captured steps: " + "; ".join(failed))
print("gpu_check: captured steps give the ids of steps run eagerly")
EOF

if "$python" -c 'import vllm' 2>/dev/null; then
    "$python" -m pytest -q tests/plugins/test_vllm_engine.py tests/plugins/test_host.py
else
    echo "gpu_check: vLLM is not installed; its plugin was not checked"
fi
