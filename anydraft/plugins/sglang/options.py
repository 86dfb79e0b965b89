"""The draft's options: variables of the server's environment, as SGLang hands a plugin no options of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args

from anydraft.errors import UsageError
from anydraft.plugins.options import OWN_QUANTIZATIONS, Options, read_options, variable_of
from anydraft.plugins.sglang.context import SlotContext

Context = Literal["retokenized", SlotContext]
"""What TLI's draft reads of the text so far: all of it in its own tokens, beside SGLang, or one token for each of the
target's, in SGLang's slots."""


def read_draft_options(args: Any, environment: Mapping[str, str], method: str) -> Options:
    """The options of a draft that AnyDraft runs with ``method``.

    Raises:
        UsageError: a variable makes no sense.
    """
    given = {"draft": str(args.speculative_draft_model_path), "method": method}
    options = read_options({"anydraft": given}, environment)
    if options.quantization is not None and options.quantization not in OWN_QUANTIZATIONS:
        raise UsageError(
            f"ANYDRAFT_QUANTIZATION={options.quantization!r} is unknown; choose one of {', '.join(OWN_QUANTIZATIONS)}"
        )
    return options


def refuse_draft_options(environment: Mapping[str, str]) -> None:
    """Refuse the options of a draft that AnyDraft runs where it runs none: in SGLang's slots.

    Raises:
        UsageError: one of them is given.
    """
    names = (variable_of(f.name) for f in fields(Options) if f.name not in ("draft", "method"))
    if given := [name for name in names if environment.get(name)]:
        raise UsageError(
            f"{given[0]}={environment[given[0]]!r} is for a draft beside SGLang, and in SGLang's slots it runs as a "
            "model of SGLang's; leave it out, or use ANYDRAFT_TLI_CONTEXT=retokenized"
        )


def read_context(environment: Mapping[str, str]) -> Context:
    """What TLI's draft reads: ``ANYDRAFT_TLI_CONTEXT``, "retokenized" by default.

    Raises:
        UsageError: it is none of :data:`Context`.
    """
    given = environment.get("ANYDRAFT_TLI_CONTEXT") or "retokenized"
    for context in get_args(Context):
        if context == given:
            return context
    raise UsageError(
        f"ANYDRAFT_TLI_CONTEXT={given!r} is unknown; choose one of {', '.join(get_args(Context))}"
    )
