"""As much of vLLM as ``anydraft bench --peer vllm`` touches: it counts on from a prompt's last id.

With "STAND_IN" in the environment it fails at the start, or takes long over its answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any


class SamplingParams:
    def __init__(
        self, temperature: float, max_tokens: int, seed: int, ignore_eos: bool, stop_token_ids: list[int]
    ) -> None:
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, **arguments: Any) -> None:
        self.mode = os.environ.get("STAND_IN", "")
        if self.mode == "fails":
            sys.stderr.write("(EngineCore pid=7) ValueError: the real reason\n")
            raise RuntimeError("Engine core initialization failed. See root cause above.\nMore.")
        if self.mode == "dies":
            os._exit(3)
        sys.stdout.write("vLLM writes to stdout as well\n")
        sys.stdout.flush()
        self.draft_tokens = arguments.get("speculative_config", {}).get("num_speculative_tokens", 0)
        self.rounds = 0
        self.core = subprocess.Popen(["sleep", "600"])

    def generate(self, prompts: list[dict[str, list[int]]], params: SamplingParams, use_tqdm: bool) -> Any:
        if self.mode == "slow":
            time.sleep(600)
        self.rounds += len(prompts)
        return [self._output(p["prompt_token_ids"], params.max_tokens) for p in prompts]

    def _output(self, ids: list[int], count: int) -> Any:
        times = SimpleNamespace(scheduled_ts=1.0, first_token_ts=1.0 + 1e-6)
        text = [(ids[-1] + 1 + i) % 256 for i in range(count)]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=text)], metrics=times)

    def get_metrics(self) -> list[Any]:
        if not self.draft_tokens:
            return []
        names = {"num_drafts": 2, "num_draft_tokens": 2 * self.draft_tokens, "num_accepted_tokens": 3}
        counted = [
            SimpleNamespace(name=f"vllm:spec_decode_{name}", value=self.rounds * by)
            for name, by in names.items()
        ]
        positions = [2 * self.rounds, self.rounds, *[0] * (self.draft_tokens - 2)]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        return [*counted, SimpleNamespace(name=name, values=positions)]
