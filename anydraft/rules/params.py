"""Sampling parameters, with vLLM's names, meanings and defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anydraft.errors import UsageError

_GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. Everything here shapes the target's distribution p, except
    ``draft_temperature``, which changes acceptance and never the output's distribution.

    Attributes:
        max_tokens: output tokens at most; None: until the context is full.
        min_tokens: end tokens are banned until so many tokens are out.
        temperature: 0 (or below 1e-5) is greedy.
        top_p, top_k, min_p: truncations of p; top_k 0 or -1 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output.
        presence_penalty, frequency_penalty: subtracted from logits of tokens in the output, once or per
            occurrence.
        logit_bias: added to the logits, by token id.
        allowed_token_ids: the only ids that may be emitted.
        seed: of all the request's randomness; None: a fresh one.
        stop: strings that end the text; cut off unless ``include_stop_str_in_output``.
        stop_token_ids: further ids that end the text.
        ignore_eos: the model's own end tokens do not end the text.
        logprobs: how many of the most probable alternatives to report a token (0: the token's own only).
        draft_temperature: of a sampled draft; None leaves it to the method.

    Raises:
        UsageError: a value out of range or two that contradict each other.
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
        _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}; lower the first or "
                "raise the second."
            )
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _whole("top_k", self.top_k, -1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, above=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.draft_temperature is not None:
            _number("draft_temperature", self.draft_temperature, 0.0, math.inf)
        if self.seed is not None:
            _whole("seed", self.seed, None)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0)
        self._check_ids()
        self._check_stops()

    def _check_ids(self) -> None:
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise UsageError(f"logit_bias={self.logit_bias!r} must be a mapping of token ids to numbers.")
            for token_id, bias in self.logit_bias.items():
                _whole("a token id of logit_bias", token_id, 0)
                _number(f"logit_bias[{token_id}]", bias, -math.inf, math.inf)
        for name in ("allowed_token_ids", "stop_token_ids"):
            ids = getattr(self, name)
            if ids is None:
                continue
            if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
                raise UsageError(f"{name}={ids!r} must be a list of token ids.")
            for token_id in ids:
                _whole(f"a member of {name}", token_id, 0)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise UsageError(
                    "allowed_token_ids is empty: nothing could be emitted; leave it out for all ids."
                )
            if self.min_tokens and set(self.allowed_token_ids) <= set(self.stop_token_ids or ()):
                raise UsageError(
                    f"min_tokens={self.min_tokens} bans every one of allowed_token_ids, which are all in "
                    "stop_token_ids; allow another id or set min_tokens=0."
                )

    def _check_stops(self) -> None:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        if stops is None:
            return
        if not isinstance(stops, (list, tuple)) or not all(isinstance(s, str) for s in stops):
            raise UsageError(f"stop={self.stop!r} must be a string or a list of strings.")
        if "" in stops:
            raise UsageError("stop holds an empty string, which would end every text; leave it out.")

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def _whole(name: str, value: object, least: int | None) -> None:
    allowed = "a whole number" + ("" if least is None else f" of at least {least}")
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise UsageError(f"{name}={value!r} must be {allowed}.")


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """``low <= value <= high`` (``low < value`` if ``above``), infinity and NaN excluded."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if good and low <= value <= high and not (above and value == low):  # type: ignore[operator]
        return
    if high == math.inf:
        allowed = (
            "a finite number"
            if low == -math.inf
            else f"a number {'above' if above else 'of at least'} {low:g}"
        )
    else:
        allowed = f"between {low:g}{' (excluded)' if above else ''} and {high:g}"
    raise UsageError(f"{name}={value!r} must be {allowed}.")
