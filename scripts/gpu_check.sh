#!/usr/bin/env bash
# Checks what needs a CUDA device, with tiny random models and no network. Needs a CUDA device.
#
#     scripts/gpu_check.sh [PYTHON]     (a Python with anydraft and its tests' dependencies; about a minute)
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

if "$python" -c 'import vllm' 2>/dev/null; then
    "$python" -m pytest -q tests/plugins/test_vllm_engine.py tests/plugins/test_host.py
else
    echo "gpu_check: vLLM is not installed; its plugin was not checked"
fi
