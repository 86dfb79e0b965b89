"""Runs one vLLM engine and prints what it wrote as JSON: a process of its own for each engine of the tests.

python run_vllm.py '{"engine": {LLM arguments}, "prompts": [[ids], ...], "max_tokens": 20, "sampling": {...}}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "result: "


def main() -> None:
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
