"""The plugin's options: ``additional_config={"anydraft": {...}}`` or ``ANYDRAFT_*`` variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from anydraft.errors import UsageError

METHODS = ("auto", "slem", "tli", "standard", "lookup")
OWN_QUANTIZATIONS = ("int8", "int4")
"""Weights that AnyDraft's own CPU runtime has; any other name is one of vLLM's."""
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Options:
    """How to draft. The variable of option ``x`` is ``ANYDRAFT_X``; ``additional_config`` goes first.

    Attributes:
        draft: the draft model: a folder, hub id, GGUF file or packaged name. None: lookup alone.
        method: "auto" (chooses step by step and turns drafting off where it does not pay), "slem", "tli",
            "standard" (equal vocabularies) or "lookup".
        dtype: of the draft; "auto": the target's.
        quantization: "int8" or "int4": AnyDraft's own forward pass, on CPUs; another name: vLLM's
            quantization of that name; None: as the draft is stored.
        window: tokens of context that the draft sees at most; None: as much as it was made for.
        kv_cache_gib: GiB for the draft's keys and values at most, beside the target's.
        log_interval: seconds between two log lines; 0: none.
    """

    draft: str | None = None
    method: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    window: int | None = None
    kv_cache_gib: float = 1.0
    log_interval: float = 10.0

    @property
    def own_runtime(self) -> bool:
        """Whether AnyDraft runs the draft, not vLLM."""
        return self.quantization in OWN_QUANTIZATIONS


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "draft": str,
    "method": str,
    "dtype": str,
    "quantization": str,
    "window": int,
    "kv_cache_gib": float,
    "log_interval": float,
}


def read_options(additional_config: object, environment: Mapping[str, str]) -> Options:
    """The options that a user gave vLLM.

    Raises:
        UsageError: an unknown key, or a value that makes no sense; named as it was given, key or variable.
    """
    given = additional_config.get("anydraft", {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(given, Mapping):
        raise UsageError(f'additional_config["anydraft"]={given!r} must be a mapping of options to values')
    names = [field.name for field in fields(Options)]
    if unknown := sorted(set(map(str, given)) - set(names)):
        raise UsageError(
            f'additional_config["anydraft"] has no option {", ".join(unknown)}; there are {", ".join(names)}'
        )
    values: dict[str, Any] = {}
    called = {name: name for name in names}
    for name in names:
        variable = variable_of(name)
        if name in given:
            values[name] = _parse(name, given[name], f'additional_config["anydraft"]["{name}"]')
        elif environment.get(variable):
            values[name] = _parse(name, environment[variable], variable)
            called[name] = variable
    options = Options(**values)
    _check(options, called)
    return options


def variable_of(name: str) -> str:
    """The environment's name of an option."""
    return f"ANYDRAFT_{name.upper()}"


def _parse(name: str, value: Any, where: str) -> Any:
    parse = _PARSERS[name]
    if value is None:
        return getattr(Options(), name)
    try:
        if isinstance(value, bool) or (parse is str and not isinstance(value, str)):
            raise ValueError
        if parse is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return parse(value)
    except (TypeError, ValueError):
        kind = {str: "text", int: "a whole number", float: "a number"}[parse]  # type: ignore[index]
        raise UsageError(f"{where}={value!r} must be {kind}") from None


def _check(options: Options, called: Mapping[str, str]) -> None:
    """Refuse values that make no sense; ``called`` says how the user named each option."""

    def given(name: str) -> str:
        return f"{called[name]}={getattr(options, name)!r}"

    if options.method == "slrs":
        raise UsageError(
            f"{given('method')} needs the draft's probabilities, which vLLM does not take from a custom_class; "
            "use slem or auto"
        )
    if options.method not in METHODS:
        raise UsageError(f"{given('method')} is unknown; choose one of {', '.join(METHODS)}")
    if options.method in ("slem", "tli", "standard") and options.draft is None:
        raise UsageError(
            f"{given('method')} needs a draft model: give draft, or use method='lookup' without one"
        )
    if options.dtype not in DTYPES:
        raise UsageError(f"{given('dtype')} is unknown; choose one of {', '.join(DTYPES)}")
    if options.own_runtime and options.dtype not in ("auto", "bfloat16"):
        raise UsageError(
            f"{given('dtype')} does not go with {given('quantization')}, which is made from bfloat16; leave one out"
        )
    if options.window is not None and options.window < 32:
        raise UsageError(f"{given('window')} must be at least 32 tokens")
    if not 0 < options.kv_cache_gib < math.inf:
        raise UsageError(f"{given('kv_cache_gib')} must be a number more than 0")
    if not options.log_interval >= 0:
        raise UsageError(f"{given('log_interval')} must be 0 or more")
