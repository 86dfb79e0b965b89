"""``model.generate(..., custom_generate=anydraft.hf.speculative(draft, tokenizer=tokenizer))``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from anydraft.engine import Engine, GenerationResult, RequestStats
from anydraft.engine.sampler import Verification
from anydraft.errors import UsageError
from anydraft.hf.arguments import check_config, padded, refuse, rows_of, sampling_options, stop_options
from anydraft.models.select import Quantization
from anydraft.rules.params import SamplingParams


def speculative(
    draft: Any = None,
    *,
    tokenizer: Any,
    method: str = "auto",
    num_speculative_tokens: int | None = None,
    verification: Verification = "rejection",
    draft_dtype: str | None = None,
    draft_quantization: Quantization = "auto",
    draft_temperature: float | None = None,
    seed: int | None = None,
    stop_strings: str | Sequence[str] | None = None,
) -> Speculative:
    """A way to generate with ``draft`` for ``model.generate(..., custom_generate=...)``; what comes out is what the
    model alone gives, the same tokens when greedy, the same distribution when sampling. The model is not changed.

    Keep the object and use it again: its first call loads the draft, the following ones find it loaded.

    Args:
        draft, method, num_speculative_tokens, verification, draft_dtype, draft_quantization, draft_temperature:
            see :class:`~anydraft.engine.engine.Engine`.
        tokenizer: the model's own. (``generate`` hands its ``tokenizer=`` to no callable.)
        seed: of sampled rows, row by row one more; None: drawn from torch's global generator, so that
            ``torch.manual_seed`` reproduces.
        stop_strings: strings that end a row; the token that completes one stays, as in ``generate``.

    Raises:
        UsageError: there is no tokenizer.
    """
    if not callable(getattr(tokenizer, "decode", None)):
        raise UsageError(f"tokenizer={tokenizer!r:.60} must be the tokenizer of the model that generates")
    options = {
        "method": method,
        "num_speculative_tokens": num_speculative_tokens,
        "verification": verification,
        "draft_dtype": draft_dtype,
        "draft_quantization": draft_quantization,
        "draft_temperature": draft_temperature,
    }
    strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings or ())
    return Speculative(draft, tokenizer, options, seed, strings)


class Speculative:
    """See :func:`speculative`. ``stats`` are those of the last call, all rows together."""

    def __init__(
        self, draft: Any, tokenizer: Any, options: dict[str, Any], seed: int | None, stop_strings: list[str]
    ) -> None:
        self._draft = draft
        self._tokenizer = tokenizer
        self._options = options
        self._seed = seed
        self._stop_strings = stop_strings
        self._model: Any = None
        self._engine: Engine | None = None
        self.stats = RequestStats()

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """What ``generate`` calls.

        Returns:
            int64 [B, W + new tokens], padded on the right; with ``return_dict_in_generate`` an output that holds it.

        Raises:
            UsageError: something was asked for that would have no effect.
            ModelError, PairError: the pair cannot be used.
        """
        streamer = _kept_by_generate(model)
        check_config(generation_config)
        rows = rows_of(input_ids, model_kwargs)
        if streamer is not None and len(rows) > 1:
            raise UsageError(
                f"a streamer takes one row, not {len(rows)}; leave it out or generate one by one"
            )
        params = self._params(logits_processor, stopping_criteria, generation_config, input_ids.shape[1])
        outputs = self._generate(self._engine_for(model), rows, params, streamer)
        sequences = padded(input_ids, outputs, _pad_id(generation_config))
        if not generation_config.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)

    def _engine_for(self, model: Any) -> Engine:
        if self._engine is None or self._model is not model:
            self._engine, self._model = Engine((model, self._tokenizer), self._draft, **self._options), model
        return self._engine

    def _params(self, processors: Any, criteria: Any, config: Any, width: int) -> SamplingParams:
        options = sampling_options(list(processors or ()), do_sample=bool(config.do_sample), width=width)
        stops = stop_options(criteria or ())
        stops["stop"] = [*(stops["stop"] or ()), *self._stop_strings] or None
        return SamplingParams(max_tokens=int(config.max_length) - width, **options, **stops)

    def _generate(
        self, engine: Engine, rows: list[list[int]], params: SamplingParams, streamer: Any
    ) -> list[list[int]]:
        most = engine.pair.target.max_context
        if (longest := max(map(len, rows)) + (params.max_tokens or 0)) > most:
            raise UsageError(
                f"the longest row may reach {longest} tokens, but {engine.pair.target.name} was made for {most}; lower "
                "max_new_tokens or shorten the prompt"
            )
        seed = self._seed if self._seed is not None else int(torch.randint(2**62, (1,)))
        engine.core.max_num_seqs = len(rows)
        encoded = [engine.encode(row) for row in rows]
        order = [
            engine.add_encoded(
                prompt, replace(params, seed=None if params.greedy else seed + i), engine.pair.method
            )
            for i, prompt in enumerate(encoded)
        ]
        results: dict[str, GenerationResult] = {}
        try:
            while len(results) < len(order):
                for delta in engine.core.step():
                    if streamer is not None:
                        for token_id in delta.token_ids:
                            streamer.put(torch.tensor([token_id]))
                    if delta.result is not None:
                        results[delta.request_id] = delta.result
        finally:
            for request_id in order:
                engine.core.abort(request_id)
        if streamer is not None:
            streamer.end()
        if errors := [r.error for r in results.values() if r.error is not None]:
            raise UsageError(errors[0])
        self.stats = RequestStats()
        for result in results.values():
            self.stats.add(result.stats)
        return [list(results[request_id].token_ids) for request_id in order]


def _kept_by_generate(model: Any) -> Any:
    """The streamer that the user gave to ``generate``, or None.

    Transformers (5.16 to 5.24) hands ``streamer`` and ``assistant_model`` to no callable. They are read from the
    calling frame, since a streamer that stays silent or an assistant that does nothing would be worse.
    """
    frame = sys._getframe(2)
    if frame.f_code.co_name != "generate" or frame.f_locals.get("self") is not model:
        return None
    if frame.f_locals.get("assistant_model") is not None:
        raise refuse("assistant_model=", "the draft is given to anydraft.hf.speculative itself")
    return frame.f_locals.get("streamer")


def _pad_id(config: Any) -> int | None:
    tensor = getattr(config, "_pad_token_tensor", None)
    return None if tensor is None else int(tensor)
