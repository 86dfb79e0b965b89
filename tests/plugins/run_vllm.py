"""One vLLM engine from start to end, in a process of its own for each engine of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

MARK = "result: "
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


def start(
    engine: dict[str, Any],
    prompts: list[list[int]],
    *,
    max_tokens: int = 1,
    sampling: dict[str, Any] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run an engine with the arguments ``engine``; a line of its stdout is what :func:`main` found."""
    given = {
        "engine": engine,
        "prompts": prompts,
        "max_tokens": max_tokens,
        "sampling": sampling or {"temperature": 0},
    }
    # Not at the top: as a script this file sees no other of the tests.
    from tests.plugins.own_session import in_own_session

    command = [sys.executable, __file__, json.dumps(given)]
    return in_own_session(command, dict(os.environ) | ENVIRONMENT, 280)


def main() -> None:
    """Print what the engine wrote, and its counters, as JSON."""
    given = json.loads(sys.argv[1])
    from vllm import LLM, SamplingParams

    llm = LLM(**given["engine"], enforce_eager=True, disable_log_stats=False)
    params = SamplingParams(
        max_tokens=given["max_tokens"], ignore_eos=True, detokenize=False, **given["sampling"]
    )
    prompts: Any = [{"prompt_token_ids": ids} for ids in given["prompts"]]
    outputs = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]
    counters = {m.name.removeprefix("vllm:"): m.value for m in llm.get_metrics() if hasattr(m, "value")}
    sys.stdout.write(f"\n{MARK}{json.dumps({'outputs': outputs, 'counters': counters})}\n")


if __name__ == "__main__":
    main()
