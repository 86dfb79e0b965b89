"""vLLM in a process of its own: answers questions on standard input, a line of JSON each, until that is closed.

The first question is the keyword arguments of ``vllm.LLM``; its answer is ``{}``. Each further one is a batch, see
:func:`_generate`. What goes wrong is answered too, as ``{"error": "in a line"}``. Started by
:class:`anydraft.bench.peers_vllm.VllmProcess`; imports nothing of AnyDraft, whose memory it has no use for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

_COUNTERS = {
    "vllm:spec_decode_num_drafts": "num_drafts",
    "vllm:spec_decode_num_draft_tokens": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "num_accepted_tokens",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


def main() -> None:
    """Serve until the questions end or SIGTERM comes; vLLM's own processes end with this one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # vLLM and its libraries write to stdout as well
        llm: Any = None
        for line in sys.stdin:
            question = json.loads(line)
            try:
                if llm is None:
                    llm, answer = _load(question), {}
                else:
                    answer = _generate(llm, question)
            except Exception as error:
                first, *_ = [*str(error).splitlines(), ""]
                answer = {"error": f"{type(error).__name__}: {first}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _load(arguments: dict[str, Any]) -> Any:
    from vllm import LLM

    return LLM(**arguments)


def _generate(llm: Any, question: dict[str, Any]) -> dict[str, Any]:
    """All prompts of ``question`` at once.

    Args:
        question: "prompts", lists of ids, and "params", keyword arguments of ``vllm.SamplingParams``.

    Returns:
        "token_ids" of each output; "seconds" of all of it and "prefill_time" of it, until the last prompt was read; and
        what vLLM counted of its drafts.
    """
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": ids} for ids in question["prompts"]]
    params = SamplingParams(**question["params"])
    before = _counts(llm)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    times = [output.metrics for output in outputs]
    return {
        "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "seconds": seconds,
        "prefill_time": max(t.first_token_ts for t in times) - min(t.scheduled_ts for t in times),
        **{name: _less(count, before.get(name, 0)) for name, count in _counts(llm).items()},
    }


def _counts(llm: Any) -> dict[str, Any]:
    """Counts since the beginning; none where nothing drafts."""
    found: dict[str, Any] = {}
    for metric in llm.get_metrics():
        if metric.name in _COUNTERS:
            found[_COUNTERS[metric.name]] = int(metric.value)
        elif metric.name == _PER_POSITION:
            found["accepted_per_position"] = list(metric.values)
    return found


def _less(now: Any, before: Any) -> Any:
    if isinstance(now, int):
        return now - before
    return [a - b for a, b in zip(now, before or [0] * len(now), strict=True)]


if __name__ == "__main__":
    main()
