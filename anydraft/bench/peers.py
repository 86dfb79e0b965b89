"""What people use today: Transformers' own generation, on the same target in the same process, or vLLM beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from anydraft.bench.measure import Configuration, Timed
from anydraft.bench.peers_vllm import VLLM_PEERS
from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.serve_all import target_ids
from anydraft.engine import RequestStats
from anydraft.errors import UsageError
from anydraft.models.load import LoadedModel
from anydraft.rules.params import SamplingParams

ASSISTED = "transformers-assisted"
_TRANSFORMERS = ("transformers", "transformers-lookup", ASSISTED)
PEERS = (*_TRANSFORMERS, *VLLM_PEERS)


class Peer(Configuration, Protocol):
    """A configuration that is not ours."""

    batches: bool
    """Whether it takes several prompts at once."""

    def close(self) -> None:
        """Free what it holds beside the target."""


def refuse_wrong_sampling(peers: Sequence[str], params: SamplingParams, *, same_vocabulary: bool) -> None:
    """Raise UsageError where a peer would not sample from the target.

    Transformers' assisted sampling maps the ids of a draft of another vocabulary wrongly, so that its text is not
    the target's and its speed says nothing.
    """
    if ASSISTED in peers and not params.greedy and not same_vocabulary:
        raise UsageError(
            f"--peer {ASSISTED} cannot run at temperature {params.temperature:g}: with a draft of another vocabulary "
            "Transformers does not sample the target's text; use --temperature 0 or leave this peer out"
        )


class TransformersPeer:
    """``model.generate``, one prompt after the other (its assisted generation knows no batches).

    "transformers" is plain; "transformers-lookup" is prompt lookup with 10 tokens; "transformers-assisted" is
    assisted generation with 5 drafts, constant schedule, confidence threshold 0.4, its best setting found; universal
    where the vocabularies differ.
    """

    batches = False

    def __init__(
        self, kind: str, target: LoadedModel, draft: LoadedModel | None, *, same_vocabulary: bool = False
    ) -> None:
        if kind not in _TRANSFORMERS:
            raise UsageError(f"peer {kind!r} is unknown; choose of {', '.join(PEERS)}")
        if kind == ASSISTED and draft is None:
            raise UsageError(f"peer {ASSISTED} needs a draft")
        self.name = kind
        self._target = target
        self._draft = draft
        self._universal = not same_vocabulary

    def run(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> Timed:
        given = [target_ids(self._target, prompt) for prompt in prompts]
        calls = _Calls(self._target.model)
        started = time.perf_counter()
        try:
            outputs = [self._generate(ids, params, calls) for ids in given]
        finally:
            calls.remove()
        seconds = time.perf_counter() - started
        total = sum(map(len, outputs))
        stats = RequestStats(
            method=self.name,
            num_steps=calls.count,
            num_accepted_tokens=max(total - calls.count, 0),
            prefill_time=calls.first_time,
        )
        return Timed(seconds, tuple(outputs), stats, sum(map(len, given)))

    def close(self) -> None:
        """There is nothing to free."""

    @torch.inference_mode()
    def _generate(self, ids: Sequence[int], params: SamplingParams, calls: _Calls) -> tuple[int, ...]:
        target = self._target
        calls.begin()
        given = torch.tensor([ids], device=target.device)
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
        if self.name == ASSISTED:
            assert self._draft is not None
            _best_assistant_settings(self._draft.model)
            options["assistant_model"] = self._draft.model
            if self._universal:
                options["tokenizer"] = target.hf_tokenizer
                options["assistant_tokenizer"] = self._draft.hf_tokenizer
        output = target.model.generate(given, attention_mask=torch.ones_like(given), **options)
        return tuple(output[0, len(ids) :].tolist())


def _best_assistant_settings(model: Any) -> None:
    model.generation_config.num_assistant_tokens = 5
    model.generation_config.num_assistant_tokens_schedule = "constant"
    model.generation_config.assistant_confidence_threshold = 0.4


class _Calls:
    """Counts a model's forward passes, and times the first of each generation, which reads the prompt."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.count = 0
        self.first_time = 0.0
        self._first = False
        self._started = 0.0
        self._hooks = (
            model.register_forward_pre_hook(self._enters),
            model.register_forward_hook(self._leaves),
        )

    def begin(self) -> None:
        """Another generation begins."""
        self._first = True

    def _enters(self, *_: Any) -> None:
        self._started = time.perf_counter()

    def _leaves(self, *_: Any) -> None:
        self.count += 1
        if self._first:
            self.first_time += time.perf_counter() - self._started
            self._first = False

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
