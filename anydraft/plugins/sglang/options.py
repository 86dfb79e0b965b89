"""The draft's options: variables of the server's environment, as SGLang hands a plugin no options of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from anydraft.errors import UsageError
from anydraft.plugins.options import OWN_QUANTIZATIONS, Options, read_options
from anydraft.plugins.sglang.context import Context


def read_draft_options(args: Any, environment: Mapping[str, str]) -> Options:
    """The options of SLEM's draft, which AnyDraft runs.

    Raises:
        UsageError: a variable makes no sense.
    """
    given = {"draft": str(args.speculative_draft_model_path), "method": "slem"}
    options = read_options({"anydraft": given}, environment)
    if options.quantization is not None and options.quantization not in OWN_QUANTIZATIONS:
        raise UsageError(
            f"ANYDRAFT_QUANTIZATION={options.quantization!r} is unknown; choose one of {', '.join(OWN_QUANTIZATIONS)}"
        )
    return options


def read_context(environment: Mapping[str, str]) -> Context:
    """What TLI's draft reads for a target token that it lacks: ``ANYDRAFT_TLI_CONTEXT``, "last" by default.

    Raises:
        UsageError: it is none of :data:`~anydraft.plugins.sglang.context.Context`.
    """
    given = environment.get("ANYDRAFT_TLI_CONTEXT") or "last"
    for context in get_args(Context):
        if context == given:
            return context
    raise UsageError(
        f"ANYDRAFT_TLI_CONTEXT={given!r} is unknown; choose one of {', '.join(get_args(Context))}"
    )
