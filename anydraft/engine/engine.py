"""The public engine: models in, text out."""

from __future__ import annotations

import copy
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from anydraft.engine.admission import parse_memory
from anydraft.engine.core import EngineCore
from anydraft.engine.detokenizer import Detokenizer
from anydraft.engine.outputs import Delta, GenerationResult
from anydraft.engine.pair import Pair
from anydraft.engine.prompts import Conversation, chat_ids, draft_chat_ids, prompt_ids
from anydraft.engine.request import FinishReason, Request
from anydraft.engine.sampler import Sampler, Verification
from anydraft.errors import AnyDraftError, UsageError
from anydraft.methods.auto import Auto
from anydraft.methods.base import Method, Prompt
from anydraft.methods.select import METHODS
from anydraft.models.select import Quantization
from anydraft.rules.noise import CoupledNoise, KeyedNoise
from anydraft.rules.params import SamplingParams

logger = logging.getLogger(__name__)

_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as both models see it.

    Attributes:
        target_ids: in the target's ids; at least one.
        draft_ids: the draft's own rendering of the same conversation, or None: it then sees the target's text.
    """

    target_ids: tuple[int, ...]
    draft_ids: tuple[int, ...] | None = None


class Engine:
    """Generates with a target model, sped up by a draft model of any vocabulary. What comes out is what the
    target alone gives: the same text when greedy, the same distribution when sampling.

    Args:
        target: packaged name, local folder, GGUF file, hub id, or a (model, tokenizer) pair, which is never
            changed.
        draft: the same, or any object that answers :class:`~anydraft.methods.base.DraftBackend`; None drafts
            without a model ("lookup") or not at all.
        method: "auto", "standard", "tli", "slem", "slrs", "lookup" or "none".
        num_speculative_tokens: draft tokens a step; None lets the method choose.
        verification: how sampled proposals that carry a q are verified: "rejection", "block" or "coupled".
        dtype: of the target: "float32", "bfloat16", "float16"; None chooses by the machine.
        draft_dtype: of the draft; None: like ``dtype``.
        draft_quantization: of the draft's weights: "int8", "int4", "none", or "auto": where it is faster.
        device: where both run; None: the GPU if there is one.
        draft_temperature: of sampled drafts; None: the method's own choice. Changes acceptance only.
        max_num_seqs: requests that run at once; more wait.
        kv_memory: bytes that the target's keys and values may take, as a number or such as "4GiB"; requests wait until
            theirs fit at full length. None: as much as ``max_num_seqs`` of them take.

    Raises:
        ModelError, PairError, UsageError: one line that says what is wrong and what to do.
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        *,
        method: str = "auto",
        num_speculative_tokens: int | None = None,
        verification: Verification = "rejection",
        dtype: str | None = None,
        draft_dtype: str | None = None,
        draft_quantization: Quantization = "auto",
        device: str | None = None,
        draft_temperature: float | None = None,
        max_num_seqs: int = 16,
        kv_memory: int | str | None = None,
    ) -> None:
        _check_arguments(method, verification, max_num_seqs)
        kv_limit = parse_memory(kv_memory)
        self.pair = Pair(
            target,
            draft,
            method=method,
            num_speculative_tokens=num_speculative_tokens,
            dtype=dtype,
            draft_dtype=draft_dtype,
            draft_quantization=draft_quantization,
            device=device,
            draft_temperature=draft_temperature,
        )
        self.pair.runner.cache.allocation.limit = kv_limit
        self._counter = itertools.count()
        self._set_up(verification, max_num_seqs)

    def with_method(
        self,
        method: str,
        *,
        num_speculative_tokens: int | None = None,
        verification: Verification = "rejection",
        draft_temperature: float | None = None,
        max_num_seqs: int = 16,
    ) -> Engine:
        """An engine on the same loaded models with another method and other settings.

        The two share keys and values: let one finish its requests before the other starts any.
        """
        _check_arguments(method, verification, max_num_seqs)
        other = copy.copy(self)
        other.pair = self.pair.with_method(
            method, num_speculative_tokens=num_speculative_tokens, draft_temperature=draft_temperature
        )
        other._set_up(verification, max_num_seqs)
        return other

    def _set_up(self, verification: Verification, max_num_seqs: int) -> None:
        self._coupled = verification == "coupled"
        sampler = Sampler(self.pair.target_vocabulary, verification)
        self.core = EngineCore(self.pair.runner, self.pair.backend, sampler, max_num_seqs, self.pair.costs)

    @property
    def method(self) -> str:
        """The method in use, "auto" resolved."""
        return _name(self.pair.method)

    @property
    def max_length(self) -> int:
        """Tokens of prompt and output that one request may have: the target's context, or what ``kv_memory`` holds."""
        context = self.pair.target.max_context
        alone = self.core.admission.longest_alone
        return context if alone is None else min(context, alone)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names that a request may choose."""
        if self.pair.bridge is None:
            return ("auto", "lookup", "none")
        same = ("standard",) if self.pair.bridge.nearly_same else ()
        return ("auto", *same, "tli", "slem", "slrs", "lookup", "none")

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        messages: Sequence[Conversation] | None = None,
    ) -> list[GenerationResult]:
        """Generate for every prompt (text or target ids) or every conversation; results in their order.

        ``sampling_params`` is one for all or one each. A prompt that cannot be served comes back with
        ``finish_reason`` "error" and does not touch the others.

        Raises:
            UsageError: the call itself is wrong, or not one of the prompts can be served.
        """
        items = self._items(prompts, messages)
        params = self._params_list(sampling_params, len(items))
        results: dict[str, GenerationResult] = {}
        order: list[str] = []
        errors: list[AnyDraftError] = []
        for item, param in zip(items, params, strict=True):
            try:
                order.append(self.add_request(item, param, chat=messages is not None))
            except AnyDraftError as error:
                errors.append(error)
                order.append(f"refused-{next(self._counter)}")
                results[order[-1]] = GenerationResult(
                    order[-1], (), "", (), FinishReason.ERROR.value, error=str(error)
                )
        if errors and len(errors) == len(items):
            raise errors[0]
        try:
            while len(results) < len(order):
                for delta in self.core.step():
                    if delta.result is not None and delta.request_id in order:
                        results[delta.request_id] = delta.result
        finally:
            for request_id in order:
                if request_id not in results:
                    self.core.abort(request_id)
        return [results[request_id] for request_id in order]

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Conversation | None = None,
        method: str | None = None,
        num_speculative_tokens: int | None = None,
    ) -> Iterator[Delta]:
        """Generate for one prompt or conversation, step by step; the last delta carries the result.

        ``method`` and ``num_speculative_tokens`` are of this request alone; None: the engine's. Closing the
        iterator aborts the request.
        """
        if (prompt is None) == (messages is None):
            raise UsageError("give either a prompt or messages")
        item = messages if messages is not None else prompt
        request_id = self.add_encoded(
            self.encode(item, chat=messages is not None),
            sampling_params or SamplingParams(),
            self.choose_method(method, num_speculative_tokens),
        )
        try:
            while True:
                for delta in self.core.step():
                    if delta.request_id == request_id:
                        yield delta
                        if delta.result is not None:
                            return
        finally:
            self.core.abort(request_id)

    def add_request(self, item: Any, params: SamplingParams, *, chat: bool = False) -> str:
        """Queue a request for :attr:`core`'s steps; its id.

        Raises:
            UsageError: a prompt that is empty, too long or malformed.
        """
        return self.add_encoded(self.encode(item, chat=chat), params, self.pair.method)

    def encode(self, item: Any, *, chat: bool = False) -> EncodedPrompt:
        """A prompt (text or target ids) or a conversation in both models' ids. Needs no running model, so it may be
        called while another thread steps.

        Raises:
            UsageError: empty or malformed.
        """
        pair = self.pair
        if not chat:
            return EncodedPrompt(prompt_ids(pair.target, item))
        own_ids = draft_chat_ids(pair.draft, item) if pair.draft is not None else None
        return EncodedPrompt(chat_ids(pair.target, item), own_ids)

    def choose_method(self, method: str | None, num_speculative_tokens: int | None = None) -> Method | None:
        """The method of a request that may bring its own; None drafts nothing.

        Args:
            method: a name, or None: the engine's, with ``num_speculative_tokens`` if given.

        Raises:
            UsageError, PairError: it is unknown or does not work with this pair.
        """
        own = self.method.partition("(")[0]
        if method in (None, own) and num_speculative_tokens is None:
            return self.pair.method
        return self.pair.other_method(method or own, num_speculative_tokens)

    def warm_up(self) -> None:
        """Run the target alone for a few tokens, so that the first request waits for nothing and the cost of the
        target alone is known (``RequestStats.predicted_speedup``). Call it while no request runs."""
        for _ in range(2):
            self.pair.costs.clear()  # the first run also pays for what is allocated once
            params = SamplingParams(temperature=0.0, max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
            for _delta in self.stream([0, 0], params, method="none"):
                pass

    def add_encoded(self, prompt: EncodedPrompt, params: SamplingParams, method: Method | None) -> str:
        """Like :meth:`add_request`, for an encoded prompt and any method of this pair.

        Raises:
            UsageError: a prompt that is too long, or parameters that name ids which the target lacks.
        """
        pair, ids = self.pair, prompt.target_ids
        room = pair.target.max_context - len(ids)
        if room < 1:
            raise UsageError(
                f"the prompt has {len(ids)} tokens, but {pair.target.name} has a context of "
                f"{pair.target.max_context}; shorten it to at most {pair.target.max_context - 1}"
            )
        if params.max_tokens is None:
            max_tokens = max(self.max_length - len(ids), 1)
        else:
            max_tokens = min(params.max_tokens, room)
        self.core.admission.refuse_unless_alone(len(ids) + max_tokens)
        self._check_ids(params)
        seed = params.seed if params.seed is not None else int.from_bytes(os.urandom(8), "big")
        noise = CoupledNoise(seed) if self._coupled else KeyedNoise(seed)
        draft_temperature = params.draft_temperature
        if isinstance(method, Auto) and params.seed is not None and draft_temperature is None:
            # How much "auto" drafts depends on the clock. So that a seed reproduces all the same, its drafts are then
            # greedy: exact match emits the target's own draws, whatever was proposed.
            draft_temperature = 0.0
        stop_ids = frozenset() if params.ignore_eos else pair.target.stop_ids
        request = Request(
            id=f"request-{next(self._counter)}",
            prompt_ids=ids,
            params=params,
            noise=noise,
            proposer=method.start(
                Prompt(
                    target_ids=ids,
                    draft_ids=prompt.draft_ids,
                    temperature=0.0 if params.greedy else params.temperature,
                    noise=noise,
                    draft_temperature=draft_temperature,
                    max_tokens=max_tokens,
                )
            )
            if method
            else None,
            detokenizer=Detokenizer(
                pair.target_vocabulary, params.stop_strings, params.include_stop_str_in_output
            ),
            stop_ids=stop_ids | frozenset(params.stop_token_ids or ()),
            max_tokens=max_tokens,
            token_ids=list(ids),
        )
        request.stats.method = _name(method)
        self.core.add(request)
        return request.id

    def _check_ids(self, params: SamplingParams) -> None:
        size = self.pair.target.vocab_size
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            bad = [i for i in getattr(params, name) or () if not 0 <= i < size]
            if bad:
                raise UsageError(
                    f"{name} names id {bad[0]}, but {self.pair.target.name} has ids 0 to {size - 1}"
                )

    @staticmethod
    def _items(prompts: Any, messages: Sequence[Conversation] | None) -> list[Any]:
        if (prompts is None) == (messages is None):
            raise UsageError("give either prompts or messages=[conversation, ...]")
        if messages is not None:
            if messages and isinstance(messages[0], dict):
                raise UsageError(
                    "messages is a list of conversations, each a list of messages: messages=[[...]]"
                )
            return list(messages)
        return [prompts] if isinstance(prompts, str) else list(prompts)

    @staticmethod
    def _params_list(
        params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * count
        if len(params) != count:
            raise UsageError(
                f"{len(params)} sampling_params for {count} prompts; give one for all or one each"
            )
        return list(params)


def _name(method: Method | None) -> str:
    return method.name if method else "none"


def _check_arguments(method: str, verification: str, max_num_seqs: int) -> None:
    """Refuse what can be refused before any model is loaded."""
    if method not in METHODS:
        raise UsageError(f"method={method!r} is unknown; choose one of {', '.join(METHODS)}")
    if verification not in get_args(Verification):
        raise UsageError(
            f"verification={verification!r} is unknown; use one of {', '.join(get_args(Verification))}"
        )
    if max_num_seqs < 1:
        raise UsageError(f"max_num_seqs={max_num_seqs} must be at least 1")
