"""What SGLang calls in each of its processes: it makes the algorithms known by name."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any, NoReturn

from anydraft.plugins.hooks import HostError
from anydraft.plugins.sglang.host import HOOKS, check_hooks

TLI = "ANYDRAFT_TLI"
SLEM = "ANYDRAFT_SLEM"


def register() -> None:
    """Register both algorithms; where this SGLang is not one that is known, such as refuse to start.

    (SGLang only logs what a plugin raises, and then says that the algorithm is unknown.)
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    try:
        check_hooks(HOOKS, importlib.metadata.version("sglang"))
    except HostError as error:
        for name in (TLI, SLEM):
            SpeculativeAlgorithm.register(name, validate_server_args=_refuse(error))(_no_worker)
        return
    from anydraft.plugins.sglang.algorithms import SLEMAlgorithm, TLIAlgorithm

    SpeculativeAlgorithm.register(TLI, supports_overlap=True, spec_class=TLIAlgorithm)(_tli_worker)
    SpeculativeAlgorithm.register(SLEM, spec_class=SLEMAlgorithm)(_slem_worker)


def _tli_worker(server_args: Any) -> type:
    from anydraft.plugins.sglang.tli import TLIWorker

    return TLIWorker


def _slem_worker(server_args: Any) -> type:
    from anydraft.plugins.sglang.slem import SLEMWorker

    return SLEMWorker


def _refuse(error: HostError) -> Callable[[Any], NoReturn]:
    def refuse(server_args: Any) -> NoReturn:
        raise error

    return refuse


def _no_worker(server_args: Any) -> NoReturn:
    raise HostError("this SGLang is not one that AnyDraft knows")
