"""What SGLang calls in each of its processes: it makes the algorithms known by name."""

from __future__ import annotations

import importlib.metadata
import os
from functools import partial
from typing import Any, NoReturn

from anydraft.errors import AnyDraftError
from anydraft.plugins.hooks import HostError
from anydraft.plugins.sglang.arguments import SLEM, TLI, find_draft, is_ours
from anydraft.plugins.sglang.host import HOOKS, check_hooks
from anydraft.plugins.sglang.options import read_context
from anydraft.plugins.sglang.refusal import refuse


def register() -> None:
    """Register both algorithms; where this SGLang is not one that is known, such as refuse to start.

    (SGLang only logs what a plugin raises, and then says that the algorithm is unknown.)
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    try:
        check_hooks(HOOKS, importlib.metadata.version("sglang"))
    except HostError as error:
        for name in (TLI, SLEM):
            SpeculativeAlgorithm.register(name, validate_server_args=partial(_refuse, error))(_no_worker)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from anydraft.plugins.sglang.algorithms import SLEMAlgorithm, TLIAlgorithm

    # SGLang reads the draft's config before it asks an algorithm anything.
    HookRegistry.register("sglang.srt.server_args.ServerArgs.resolve_once", _find_draft, HookType.BEFORE)
    SpeculativeAlgorithm.register(TLI, supports_overlap=True, spec_class=TLIAlgorithm)(_tli_worker)
    SpeculativeAlgorithm.register(SLEM, spec_class=SLEMAlgorithm)(_slem_worker)


def _find_draft(server_args: Any) -> None:
    try:
        if is_ours(server_args.speculative_algorithm):
            find_draft(server_args)
    except AnyDraftError as error:
        refuse(error)


def _tli_worker(server_args: Any) -> type:
    if read_context(os.environ) == "retokenized":
        from anydraft.plugins.sglang.beside import TLIWorker

        return TLIWorker
    from anydraft.plugins.sglang.slots import SlotWorker

    return SlotWorker


def _slem_worker(server_args: Any) -> type:
    from anydraft.plugins.sglang.beside import SLEMWorker

    return SLEMWorker


def _refuse(error: HostError, server_args: Any) -> NoReturn:
    refuse(error)


def _no_worker(server_args: Any) -> NoReturn:
    raise HostError("this SGLang is not one that AnyDraft knows")
