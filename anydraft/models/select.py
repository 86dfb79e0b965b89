"""Which runner suits a loaded model on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import torch

from anydraft.errors import ModelError, UsageError
from anydraft.kernels import available, replace_linears, settle
from anydraft.kernels.decoder import unsupported
from anydraft.models.graphs import CudaRecorder
from anydraft.models.growth import Allocation
from anydraft.models.load import LoadedModel
from anydraft.models.native import NativeRunner
from anydraft.models.runner import ModelRunner

logger = logging.getLogger(__name__)

Quantization = Literal["auto", "none", "int8", "int4"]


class Cache(Protocol):
    """A runner's keys and values, addressed by row."""

    def move_row(self, source: int, destination: int, length: int) -> None: ...

    @property
    def num_bytes(self) -> int: ...


class SlotRows(Cache, Protocol):
    """A cache of rows that all have as many slots; it grows as forwards need it."""

    @property
    def allocation(self) -> Allocation: ...

    def fit(self, rows: int, slots: int) -> None: ...

    def make_room(self, rows: int, slots: int) -> None: ...


class Runner(Protocol):
    """Forward passes of one model over rows of tokens; see :class:`~anydraft.models.runner.ModelRunner`."""

    on_kernels: bool
    """Whether the C kernels do its work, and so want the cores that torch's threads would keep busy."""
    max_context: int
    device: torch.device
    dtype: torch.dtype

    @property
    def cache(self) -> Cache: ...

    @property
    def vocab_size(self) -> int: ...

    def prefill(self, row: int, ids: Sequence[int], start: int) -> None: ...

    def forward(
        self,
        first_row: int,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        *,
        last_only: bool = False,
        only: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def forward_tree(
        self,
        row: int,
        ids: Sequence[int],
        depths: Sequence[int],
        parents: Sequence[int],
        start: int,
        first_new: int,
    ) -> torch.Tensor: ...


class SlotRunner(Runner, Protocol):
    """A runner whose cache is one of slots."""

    @property
    def cache(self) -> SlotRows: ...


def make_runner(loaded: LoadedModel, *, quantization: Quantization = "none") -> SlotRunner:
    """The fastest runner that this model has here: the C forward pass, else torch with the C linear layers,
    else Transformers as it is.

    Args:
        quantization: of a draft's weights: "int8", "int4", "none", or "auto": int8 where the C forward pass
            runs (drafts need no exactness).

    Raises:
        UsageError: an unknown quantization, or one that this model cannot have here.
        ModelError: a model whose cache cannot be rolled back.
    """
    check_quantization(quantization)
    reason = unsupported(loaded.model)
    if reason is None:
        weight: Any = {"none": "bf16", "auto": "int8"}.get(quantization, quantization)
        if not loaded.borrowed:
            settle(loaded.model if weight == "bf16" else loaded.model.get_input_embeddings())
        try:
            runner = NativeRunner(loaded.model, loaded.max_context, weight)
        except ModelError as error:
            reason = str(error)
        else:
            if weight != "bf16" and not loaded.borrowed:
                _let_go_of_the_rest(loaded.model)
            return runner
    if quantization in ("int8", "int4"):
        raise UsageError(
            f"{loaded.name} cannot run with {quantization} weights here: {reason}; use quantization 'none'"
        )
    logger.info("%s runs in torch, not on the C forward pass: %s", loaded.name, reason)
    if not loaded.borrowed and loaded.device.type == "cpu" and loaded.dtype == torch.bfloat16 and available():
        replace_linears(loaded.model)
    return ModelRunner(loaded.model, loaded.max_context, _recorder(loaded.device))


def _recorder(device: torch.device) -> CudaRecorder | None:
    """What records a model's steps on ``device``; None on CPUs, and where ``ANYDRAFT_ENFORCE_EAGER`` is set."""
    if device.type != "cuda" or os.environ.get("ANYDRAFT_ENFORCE_EAGER", "0") not in ("", "0"):
        return None
    return CudaRecorder(device)


def check_quantization(quantization: str) -> None:
    """Refuse an unknown name before anything is loaded.

    Raises:
        UsageError: it is none of :data:`Quantization`.
    """
    if quantization not in get_args(Quantization):
        raise UsageError(
            f"draft_quantization={quantization!r} is unknown; use one of {', '.join(get_args(Quantization))}"
        )


def _let_go_of_the_rest(model: Any) -> None:
    """Free the matrices that a quantized copy stands for, and copy what is small; the embedding, which is not in the
    file's mapping any more, stays, and a head tied to it. Then nothing keeps the file in memory."""
    embedding = model.get_input_embeddings().weight
    for module in model.modules():
        if getattr(module, "weight", None) is embedding:
            continue
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(torch.empty(0, dtype=module.weight.dtype), requires_grad=False)
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.clone()
