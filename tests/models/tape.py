"""A stand-in for CUDA graphs on a CPU, as strict as they are, and less kind.

What is recorded are torch's operations with the very tensors that they had. A replay runs no Python of the model:
numbers that Python read while recording stay as they were, and so do addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anydraft.models.graphs import Recording


class TapeRecorder:
    """A :class:`~anydraft.models.graphs.Recorder` that spoils all that a replay may not rely on.

    Before a replay everything that the recorded call made is garbage, its output among it; after one, its integer
    inputs are. Weights, keys and values are left as they are.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, call: Callable[[], torch.Tensor]) -> Recording:
        tape = _Tape()
        with tape:
            output = call()
        tape.spoil_made()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.spoil_made()
            tape.replay()
            tape.spoil_inputs()

        return Recording(output, replay)


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._made: dict[int, torch.Tensor] = {}
        self._given: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {t.untyped_storage().data_ptr(): t for t in _tensors((args, kwargs))}
        self._given |= {at: t for at, t in given.items() if at not in self._made}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            at = tensor.untyped_storage().data_ptr()
            if at not in given and at not in self._given:
                self._made[at] = tensor
        self._calls.append((func, args, kwargs, result))
        return result

    def spoil_made(self) -> None:
        for tensor in self._made.values():
            _spoil(tensor)

    def spoil_inputs(self) -> None:
        for tensor in self._given.values():
            if not tensor.is_floating_point():
                _spoil(tensor)

    def replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            for old, new in zip(_tensors(result), _tensors(func(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _spoil(tensor: torch.Tensor) -> None:
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(7)
