"""What people use today: Transformers' own generation, on the same target in the same process, or vLLM beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
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


def refuse_wrong_sampling(
    peers: Sequence[str], params: SamplingParams, other_vocabulary: Sequence[str]
) -> None:
    """Raise UsageError where a peer would not sample from the target; ``other_vocabulary`` names the drafts whose
    vocabulary is not the target's.

    Transformers' assisted sampling maps the ids of such a draft wrongly, so that its text is not the target's and
    its speed says nothing.
    """
    if ASSISTED in peers and not params.greedy and other_vocabulary:
        raise UsageError(
            f"--peer {ASSISTED} cannot run with {other_vocabulary[0]} at temperature {params.temperature:g}: with a "
            "draft of another vocabulary Transformers does not sample the target's text; use --temperature 0, or "
            "leave this draft or this peer out"
        )


@dataclass(frozen=True)
class Assistant:
    """A draft for "transformers-assisted".

    Attributes:
        name: as it was given.
        model: a copy of the peer's own, since its generation settings are changed.
        universal: its vocabulary is not the target's.
    """

    name: str
    model: LoadedModel
    universal: bool


class TransformersPeer:
    """``model.generate``, one prompt after the other (its assisted generation knows no batches).

    "transformers" is plain; "transformers-lookup" is prompt lookup with 10 tokens; "transformers-assisted" is
    assisted generation with one draft, named after it: 5 tokens at once, constant schedule, confidence threshold
    0.4, its best setting found; universal where the vocabularies differ.
    """

    batches = False

    def __init__(self, kind: str, target: LoadedModel, assistant: Assistant | None = None) -> None:
        if kind not in _TRANSFORMERS:
            raise UsageError(f"peer {kind!r} is unknown; choose of {', '.join(PEERS)}")
        if kind == ASSISTED and assistant is None:
            raise UsageError(f"peer {ASSISTED} needs a draft")
        self.name = kind if assistant is None else f"{kind} <- {assistant.name}"
        self._kind = kind
        self._target = target
        self._assistant = assistant
        if assistant is not None:
            _set_assistant(assistant.model.model)

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
            method=self._kind,
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
            options["eos_token_id"] = None
        if self._kind == "transformers-lookup":
            options["prompt_lookup_num_tokens"] = 10
        if self._assistant is not None:
            options["assistant_model"] = self._assistant.model.model
            if self._assistant.universal:
                options["tokenizer"] = target.hf_tokenizer
                options["assistant_tokenizer"] = self._assistant.model.hf_tokenizer
        output = target.model.generate(given, attention_mask=torch.ones_like(given), **options)
        return tuple(output[0, len(ids) :].tolist())


def _set_assistant(model: Any) -> None:
    config = model.generation_config
    config.num_assistant_tokens = 5
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.4
    # Drafts end at the target's end tokens; the assistant's own would count only where those are switched off.
    config.eos_token_id = None


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
