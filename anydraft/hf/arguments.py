"""What ``generate`` hands to a callable, in our terms; what would be ignored is refused.

The prepared processors and criteria are the truth of what ``generate`` would do, whether they came from the
generation config or from the caller, so they are what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from anydraft.errors import UsageError

_PROCESSORS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "RepetitionPenaltyLogitsProcessor": lambda p: {"repetition_penalty": float(p.penalty)},
    "MinLengthLogitsProcessor": lambda p: {"min_length": int(p.min_length)},
    "MinNewTokensLengthLogitsProcessor": lambda p: {"min_tokens": int(p.min_new_tokens)},
    "TemperatureLogitsWarper": lambda p: {"temperature": float(p.temperature)},
    "TopKLogitsWarper": lambda p: {"top_k": int(p.top_k)},
    "TopPLogitsWarper": lambda p: {"top_p": float(p.top_p)},
    "MinPLogitsWarper": lambda p: {"min_p": float(p.min_p)},
    "LogitNormalization": lambda p: {},
}
"""Processors with a counterpart, in the order in which ours are applied too."""

_SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p")

_OTHER_WAYS = (
    "num_beams",
    "num_beam_groups",
    "penalty_alpha",
    "dola_layers",
    "constraints",
    "force_words_ids",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "use_mtp",
    "speculation_type",
    "cache_implementation",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
)
"""Settings that ask for another kind of decoding, another cache or other outputs; 1 and what is false are none."""

_HARMLESS = ("attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep")
"""Arguments of a forward pass that are checked here or change nothing."""


def refuse(what: str, instead: str) -> UsageError:
    return UsageError(f"{what} has no effect under anydraft.hf.speculative; {instead}")


def check_config(config: Any) -> None:
    """Raise UsageError where the generation config asks for something else than plain decoding."""
    for name in _OTHER_WAYS:
        value = getattr(config, name, None)
        if value and not (value == 1 and value is not True):
            raise refuse(f"{name}={value!r}", "leave it out, or generate without custom_generate")


def sampling_options(processors: Sequence[Any], *, do_sample: bool, width: int = 0) -> dict[str, Any]:
    """Keyword arguments of our SamplingParams for the prepared logits processors.

    Args:
        width: of ``input_ids``, which a least length counts in.

    Raises:
        UsageError: one without a counterpart, one that comes twice, or an order that gives other probabilities.
    """
    options: dict[str, Any] = {"temperature": 1.0 if do_sample else 0.0}
    names = [type(p).__name__ for p in processors]
    known = list(_PROCESSORS)
    for name, processor in zip(names, processors, strict=True):
        if name not in known:
            raise refuse(f"the logits processor {name}", f"these are known: {', '.join(known)}")
        found = _PROCESSORS[name](processor)
        options |= {k: v for k, v in found.items() if do_sample or k not in _SAMPLING_ONLY}
    if names != sorted(set(names), key=known.index):
        raise refuse(
            f"the order {', '.join(names)} of the logits processors",
            f"give each once, in the order {', '.join(known)}",
        )
    if (least := options.pop("min_length", 0)) > width:
        options["min_tokens"] = max(least - width, options.get("min_tokens", 0))
    if options.get("top_p", 1.0) < 1.0 and options.get("min_p", 0.0) > 0.0:
        raise refuse(
            "top_p together with min_p, which Transformers applies in another order", "give one of them"
        )
    return options


def stop_options(criteria: Iterable[Any]) -> dict[str, Any]:
    """Keyword arguments of our SamplingParams for the prepared stopping criteria: end tokens and stop strings.

    Raises:
        UsageError: a criterion without a counterpart.
    """
    ids: list[int] = []
    strings: list[str] = []
    for criterion in criteria:
        name = type(criterion).__name__
        if name == "EosTokenCriteria":
            ids += [int(i) for i in criterion.eos_token_id.flatten().tolist()]
        elif name == "StopStringCriteria":
            strings += criterion.stop_strings
        elif name != "MaxLengthCriteria":
            raise refuse(
                f"the stopping criterion {name}",
                "end tokens, stop strings and lengths are what can end a text",
            )
    return {"ignore_eos": True, "stop_token_ids": sorted(set(ids)), "stop": strings or None}


def rows_of(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """Each row's own ids, without the padding on its left.

    Args:
        input_ids: int64 [B, W].
        model_kwargs: what ``generate`` would give to the model's forward pass.

    Raises:
        UsageError: padding elsewhere, positions of the caller's own, a filled cache, or other inputs.
    """
    for name, value in model_kwargs.items():
        if name not in _HARMLESS and value is not None and value is not False:
            raise refuse(f"{name}=", "leave it out; text goes in as input_ids with an attention_mask")
    for name in ("cache", "past_key_values"):
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise refuse(f"a filled {name}", "leave it out: the whole text goes in as input_ids")
    mask = model_kwargs.get("attention_mask")
    kept = torch.ones_like(input_ids) if mask is None else mask
    if kept.shape != input_ids.shape or not bool(((kept == 0) | (kept == 1)).all()):
        raise refuse("an attention_mask that is not 0 or 1 for each of input_ids", "give one that is")
    lengths = kept.sum(dim=1)
    starts = input_ids.shape[1] - lengths
    columns = torch.arange(input_ids.shape[1], device=input_ids.device)
    if not bool((kept.bool() == (columns >= starts[:, None])).all()):
        raise refuse("padding that is not on the left", "set tokenizer.padding_side = 'left'")
    if int(lengths.min()) < 1:
        raise UsageError(f"row {int(lengths.argmin())} of input_ids is nothing but padding; give it a token")
    _check_positions(model_kwargs.get("position_ids"), kept)
    return [row[start:].tolist() for row, start in zip(input_ids, starts.tolist(), strict=True)]


def _check_positions(positions: torch.Tensor | None, mask: torch.Tensor) -> None:
    if positions is None:
        return
    plain = mask.cumsum(dim=1) - 1
    given = positions.expand_as(plain) if positions.dim() == 2 else None
    if given is None or not bool((given == plain)[mask.bool()].all()):
        raise refuse(
            "position_ids of your own", "leave them out: positions count from each row's first token"
        )


def padded(
    input_ids: torch.Tensor, outputs: Sequence[Sequence[int]], pad_token_id: int | None
) -> torch.Tensor:
    """``input_ids`` [B, W] with each row's output behind it, padded on the right: [B, W + longest output]."""
    longest = max(map(len, outputs))
    pad = 0 if pad_token_id is None else pad_token_id
    rows = [[*output, *[pad] * (longest - len(output))] for output in outputs]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], dim=1)
