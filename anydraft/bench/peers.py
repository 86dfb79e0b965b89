"""What people use today, on the same target in the same process: Transformers' own generation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from anydraft.bench.measure import Timed
from anydraft.bench.prompts import BenchPrompt
from anydraft.engine import RequestStats
from anydraft.engine.prompts import chat_ids, has_chat_template, prompt_ids
from anydraft.errors import UsageError
from anydraft.models.load import LoadedModel
from anydraft.rules.params import SamplingParams

PEERS = ("transformers", "transformers-lookup", "transformers-assisted")


class TransformersPeer:
    """``model.generate``, one prompt after the other (its assisted generation knows no batches).

    "transformers" is plain; "transformers-lookup" is prompt lookup with 10 tokens; "transformers-assisted" is
    universal assisted generation with 5 drafts, constant schedule, confidence threshold 0.4, its best setting found.
    """

    def __init__(self, kind: str, target: LoadedModel, draft: LoadedModel | None) -> None:
        if kind not in PEERS:
            raise UsageError(f"peer {kind!r} is unknown; choose of {', '.join(PEERS)}")
        if kind == "transformers-assisted" and draft is None:
            raise UsageError("peer transformers-assisted needs a draft")
        self.name = kind
        self._target = target
        self._draft = draft

    def run(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> Timed:
        calls = _Calls(self._target.model)
        started = time.perf_counter()
        try:
            outputs = [self._generate(p, params) for p in prompts]
        finally:
            calls.remove()
        seconds = time.perf_counter() - started
        total = sum(map(len, outputs))
        stats = RequestStats(
            method=self.name, num_steps=calls.count, num_accepted_tokens=max(total - calls.count, 0)
        )
        return Timed(seconds, tuple(outputs), stats)

    @torch.inference_mode()
    def _generate(self, prompt: BenchPrompt, params: SamplingParams) -> tuple[int, ...]:
        target = self._target
        if prompt.messages is not None and has_chat_template(target):
            ids = chat_ids(target, list(prompt.messages))
        else:
            ids = prompt_ids(target, prompt.text)
        given = torch.tensor([ids])
        options: dict[str, Any] = {
            "do_sample": not params.greedy,
            "num_beams": 1,
            "max_new_tokens": params.max_tokens,
        }
        if not params.greedy:
            options |= {"temperature": params.temperature, "top_k": 0, "top_p": 1.0}
            torch.manual_seed(params.seed or 0)
        if params.ignore_eos:
            options["eos_token_id"] = -1
        if self.name == "transformers-lookup":
            options["prompt_lookup_num_tokens"] = 10
        if self.name == "transformers-assisted":
            assert self._draft is not None
            _best_assistant_settings(self._draft.model)
            options |= {
                "assistant_model": self._draft.model,
                "tokenizer": target.hf_tokenizer,
                "assistant_tokenizer": self._draft.hf_tokenizer,
            }
        output = target.model.generate(given, attention_mask=torch.ones_like(given), **options)
        return tuple(output[0, len(ids) :].tolist())


def _best_assistant_settings(model: Any) -> None:
    model.generation_config.num_assistant_tokens = 5
    model.generation_config.num_assistant_tokens_schedule = "constant"
    model.generation_config.assistant_confidence_threshold = 0.4


class _Calls:
    """Counts a model's forward passes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.count = 0
        self._hook = model.register_forward_hook(self._seen)

    def _seen(self, *_: Any) -> None:
        self.count += 1

    def remove(self) -> None:
        self._hook.remove()
