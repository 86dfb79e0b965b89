"""Steps of one token a row, recorded once and replayed: on a GPU, CUDA graphs.

A draft's step is so short that launching its kernels one by one from Python costs more than running them. A
recording launches them all at once, but it keeps what it saw: shapes, addresses, and every number that Python read.
So a step is put into a *bucket* of rows and slots, and all that differs from step to step goes through tensors that
stay where they are. Everything here but :class:`CudaRecorder` runs on any device.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from anydraft.models.kv import SlotCache

logger = logging.getLogger(__name__)

SMALLEST_SLOTS = 256
"""Slots that the first bucket reads; reading them costs a GPU less than another recording."""

MAX_GRAPHS = 32
"""Recordings kept at most; the one that was used longest ago goes first."""

_WARM_UPS = 2


@dataclass(frozen=True)
class Recording:
    """A recorded call: ``replay`` runs it again on the same addresses and leaves its result in ``output``."""

    output: torch.Tensor
    replay: Callable[[], None]


class Recorder(Protocol):
    """Records a call whose work lies in tensors alone.

    Raises:
        RuntimeError: the call cannot be recorded.
    """

    def record(self, call: Callable[[], torch.Tensor]) -> Recording: ...


class CudaRecorder:
    """Records into CUDA graphs of one memory pool.

    Args:
        device: of all tensors of the calls.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()

    def record(self, call: Callable[[], torch.Tensor]) -> Recording:
        """See :class:`Recorder`."""
        graph = torch.cuda.CUDAGraph()
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        # Entered here as well: a capture that fails leaves its own stream current.
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    call()
                # thread_local: what other threads do on the GPU meanwhile is their own affair.
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    output = call()
        finally:
            caller.wait_stream(self._stream)
        return Recording(output, graph.replay)


class Step(Protocol):
    """A forward of one token for each of the rows 0..: int64 [B, 1] each, logits [B, 1, V]."""

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, write_at: torch.Tensor, read_to: int
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Bucket:
    """What a recording is for: the rows 0.. up to ``rows``, reading the first ``slots`` slots of each."""

    rows: int
    slots: int


@dataclass(frozen=True)
class _Graph:
    inputs: torch.Tensor
    recording: Recording


class StepGraphs:
    """Recorded steps over a cache, one for each bucket, recorded when it is first needed.

    Where recording fails, the reason is logged once and every step is left to the caller from then on.

    Args:
        step: runs a step over ``cache``, reading nothing on the host.
        cache: made with a spare slot, which takes what is computed for rows that are not fed.
    """

    def __init__(self, step: Step, cache: SlotCache, recorder: Recorder, device: torch.device) -> None:
        self._step = step
        self._cache = cache
        self._recorder = recorder
        self._device = device
        self._generation = 0
        self._graphs: OrderedDict[Bucket, _Graph] = OrderedDict()
        self._usable = True

    @property
    def buckets(self) -> list[Bucket]:
        """Of the recordings there are, the one that was used last at the end."""
        return list(self._graphs)

    def forward(
        self,
        first_row: int,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        only: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """As :meth:`~anydraft.models.runner.ModelRunner.forward`, for rows of one id or none.

        Returns:
            Logits [B, 1, V or A], the caller's to keep; None: this step has to run without a recording.
        """
        if not self._usable or self._cache.generation == 0:
            return None
        last = first_row + len(ids)
        fed = [
            (first_row + b, row[0], start)
            for b, (row, start) in enumerate(zip(ids, starts, strict=True))
            if row
        ]
        needed = max(start for _, _, start in fed) + 1
        self._cache.fit(last, needed)
        if self._cache.generation != self._generation:
            self._graphs.clear()
            self._generation = self._cache.generation
        bucket = self._bucket(last, needed)
        inputs = self._inputs(bucket, fed)
        graph = self._graphs.get(bucket)
        if graph is None:
            graph = self._record(bucket, inputs.to(self._device), [row for row, _, _ in fed])
            if graph is None:
                return None
            self._graphs[bucket] = graph
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
        else:
            self._graphs.move_to_end(bucket)
            graph.inputs.copy_(inputs)
            graph.recording.replay()
        logits = graph.recording.output[first_row:last]
        return logits.clone() if only is None else logits[..., only.to(self._device)]

    def _bucket(self, rows: int, slots: int) -> Bucket:
        allocation = self._cache.allocation
        return Bucket(
            in_doublings(rows, 1, allocation.rows), in_doublings(slots, SMALLEST_SLOTS, allocation.slots)
        )

    def _inputs(self, bucket: Bucket, fed: Iterable[tuple[int, int, int]]) -> torch.Tensor:
        """Ids, positions and slots to write, int64 [3, rows]; for a row that is not fed, what does no harm."""
        columns = [(0, 0, self._cache.spare_slot)] * bucket.rows
        for row, token, start in fed:
            columns[row] = (token, start, start)
        return torch.tensor(columns).t().contiguous()

    def _record(self, bucket: Bucket, inputs: torch.Tensor, rows: list[int]) -> _Graph | None:
        """The step of ``inputs``, run and recorded; None: it cannot be recorded, nor will others be."""
        ids, positions, write_at = inputs[:, :, None]

        def call() -> torch.Tensor:
            return self._step(ids, positions, write_at, bucket.slots)

        try:
            with _NothingOnTheHost():
                expected = call()
            recording = self._recorder.record(call)
            recording.replay()
            _require_close(recording.output[rows], expected[rows])
        except RuntimeError as error:
            self._usable = False
            self._graphs.clear()
            logger.warning("steps of one token run without CUDA graphs, so slower: %s", _first_cause(error))
            return None
        return _Graph(inputs, recording)


def in_doublings(needed: int, smallest: int, most: int) -> int:
    """The first of ``smallest``, twice that, … that is at least ``needed``, and ``most`` at most."""
    size = smallest
    while size < needed:
        size *= 2
    return min(size, most)


class _NothingOnTheHost(TorchDispatchMode):
    """Refuses what reads a tensor's values on the host, or copies between devices, before it breaks a recording.

    A capture that fails half-way leaves torch's random generator of the device unusable for everybody.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masked = func.overloadpacket in _INDEXING and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if masked or func.overloadpacket in _ON_THE_HOST:
            raise RuntimeError(f"the model reads values on the host ({func})")
        with self:  # in inference mode compound operations arrive whole; what they are made of counts
            result = func.decompose(*args, **(kwargs or {}))
        if result is not NotImplemented:
            return result
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _COPIES:
            devices = {t.device for t in (*args, result) if isinstance(t, torch.Tensor)}
            if len(devices) > 1:
                raise RuntimeError(f"the model copies between devices ({func})")
        return result


_aten = torch.ops.aten
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_}
_COPIES = {_aten._to_copy, _aten.copy_}
_ON_THE_HOST = {
    _aten._local_scalar_dense,
    _aten.equal,
    _aten.nonzero,
    _aten.masked_select,
    _aten._unique2,
    _aten.unique_dim,
    _aten.unique_consecutive,
    _aten.bincount,
}


def _require_close(replayed: torch.Tensor, expected: torch.Tensor) -> None:
    """Logits of the same step, replayed and run.

    Raises:
        RuntimeError: they differ by more than another order of the same sums would make them.
    """
    if torch.equal(replayed, expected):
        return
    scale = float(expected.float().abs().max())
    error = float((replayed.float() - expected.float()).abs().max())
    tolerance = 1e-3 if expected.dtype == torch.float32 else 0.1
    if not error <= tolerance * scale:
        raise RuntimeError(f"a replayed step is off by {error:.3g} of {scale:.3g} from the same step run")


def _first_cause(error: BaseException) -> str:
    """The first line of the error that led to ``error``: the end of a failed capture fails as well."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error) or type(error).__name__).splitlines()[0]
