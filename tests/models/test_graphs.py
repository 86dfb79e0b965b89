"""Recorded steps: whatever rows do between them, a replay's logits are those of the step run."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from anydraft.methods.base import Rollout
from anydraft.models import graphs, select
from anydraft.models.draft import ModelDraft
from anydraft.models.graphs import Bucket, CudaRecorder, Recording, in_doublings
from anydraft.models.runner import ModelRunner
from anydraft.vocab.huggingface import read_huggingface
from tests import tiny
from tests.models.tape import TapeRecorder
from tests.models.test_runner import close, gemma3_sliding, ids_of, llama, plain, qwen2


@pytest.fixture(params=[llama, qwen2, gemma3_sliding], ids=lambda f: f.__name__)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return request.param().eval()


def small() -> Any:
    torch.manual_seed(0)
    return llama().eval()


class Rows:
    """A runner whose steps are recorded, and what its rows should hold."""

    def __init__(self, model: Any, max_context: int = 512) -> None:
        self.model = model
        self.tape = TapeRecorder()
        self.runner = ModelRunner(model, max_context, self.tape)
        self.ids: list[list[int]] = []

    def enter(self, ids: list[int]) -> None:
        self.ids.append(list(ids))
        self.runner.prefill(len(self.ids) - 1, ids, 0)

    def leave(self, row: int) -> None:
        last = self.ids.pop()
        if row < len(self.ids):
            self.ids[row] = last
            self.runner.cache.move_row(len(self.ids), row, len(last))

    def step(
        self, tokens: list[int | None], first: int = 0, only: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Feed a token to each of the rows from ``first`` on (None: none); check their logits."""
        rows = self.ids[first : first + len(tokens)]
        feeds = [[] if token is None else [token] for token in tokens]
        starts = [len(row) for row in rows]
        logits = self.runner.forward(first, feeds, starts, last_only=True, only=only)
        assert logits.shape[:2] == (len(tokens), 1)
        for b, (row, feed) in enumerate(zip(rows, feeds, strict=True)):
            row.extend(feed)
            if feed:
                want = plain(self.model, row)[-1]
                assert close(logits[b, 0], want if only is None else want[only])
        return logits

    @property
    def buckets(self) -> list[Bucket]:
        assert self.runner._graphs is not None
        return self.runner._graphs.buckets


def test_ragged_rows_that_are_rolled_back(model: Any) -> None:
    rows = Rows(model)
    for i, n in enumerate((3, 17, 9)):
        rows.enter(ids_of(i, n))
    for step in range(6):
        rows.step([1 + step, 20 + step, 40 + step])
        if step % 2:
            del rows.ids[step % 3][-2:]
    assert rows.buckets == [Bucket(4, 256)]
    assert (rows.tape.recorded, rows.tape.replayed) == (1, 6)


def test_rows_enter_leave_and_move_between_steps(model: Any) -> None:
    rows = Rows(model)
    for i, n in enumerate((5, 12, 30, 4)):
        rows.enter(ids_of(i, n))
    rows.step([1, 2, 3, 4])
    rows.leave(1)
    rows.step([5, 6, 7])
    rows.leave(0)
    rows.leave(0)
    rows.step([8])
    rows.enter(ids_of(9, 25))
    rows.step([9, 10])
    rows.step([11, 12])
    assert rows.buckets == [Bucket(4, 256), Bucket(1, 256), Bucket(2, 256)]


def test_several_tokens_at_once_go_unrecorded_between_steps(model: Any) -> None:
    rows = Rows(model)
    rows.enter(ids_of(1, 6))
    rows.step([1])
    more = ids_of(2, 5)
    logits = rows.runner.forward(0, [more], [len(rows.ids[0])])
    rows.ids[0] += more
    assert close(logits[0], plain(model, rows.ids[0])[-5:])
    rows.step([2])
    assert rows.tape.replayed == 2


def test_a_row_grows_past_its_cache(model: Any) -> None:
    """The keys and values move: what was recorded with the old addresses is of no use. What lay in the spare slot
    does not move: the row that stays short would multiply it by 0, and see a NaN."""
    rows = Rows(model)
    rows.enter(ids_of(1, 253))
    rows.enter(ids_of(2, 5))
    spare = rows.runner.cache.spare_slot
    with torch.inference_mode():
        for layer in rows.runner.cache.layers:
            layer.keys[:, :, spare:] = layer.values[:, :, spare:] = float("nan")
    for token in range(1, 7):
        rows.step([token, token])
    assert rows.buckets == [Bucket(2, 512)]
    assert rows.tape.recorded == 2
    for token in range(1, 3):
        del rows.ids[0][-5:]
        rows.step([token, token])
    assert rows.buckets == [Bucket(2, 512), Bucket(2, 256)]


def test_a_row_grows_past_what_its_recording_reads(model: Any) -> None:
    """The cache has room already, so nothing moves: another recording reads on."""
    rows = Rows(model)
    rows.enter(ids_of(1, 254))
    rows.runner.cache.fit(1, 300)
    for token in range(1, 5):
        rows.step([token])
    assert rows.buckets == [Bucket(1, 256), Bucket(1, 512)]


def test_the_last_slots_of_a_cache_are_of_use(model: Any) -> None:
    """A bucket ends with the cache, where that is no power of two."""
    rows = Rows(model, max_context=300)
    rows.enter(ids_of(1, 297))
    rows.step([1])
    rows.step([2])
    assert rows.buckets == [Bucket(1, 300 + 64)]


def test_rows_that_are_not_fed_keep_all_they_hold(model: Any) -> None:
    """Also where a row fills its slots to the last, and where it lies outside of the rows of the call."""
    rows = Rows(model)
    for i, n in enumerate((4, 256, 7, 5)):
        rows.enter(ids_of(i, n))
    assert rows.runner.cache.allocation.slots == 256
    rows.step([1, None, 2])
    rows.step([3], first=3)
    rows.step([None, None, 4, None])
    rows.step([5, 6, 7, 8])


def test_certain_ids_only(model: Any) -> None:
    rows = Rows(model)
    for i, n in enumerate((5, 8)):
        rows.enter(ids_of(i, n))
    only = torch.tensor([3, 1, 40])
    assert rows.step([1, 2], only=only).shape == (2, 1, 3)
    rows.step([3, 4], only=only)
    rows.step([5, 6])


def test_logits_are_the_callers_to_keep() -> None:
    rows = Rows(small())
    rows.enter(ids_of(1, 5))
    first = rows.step([1])
    kept = first.clone()
    rows.step([2])
    assert torch.equal(first, kept)


def test_the_first_token_of_an_empty_cache_goes_unrecorded() -> None:
    rows = Rows(small())
    rows.ids.append([])
    rows.step([1])
    assert rows.tape.recorded == 0
    rows.step([2])
    assert rows.tape.recorded == 1


def test_recordings_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    rows = Rows(small())
    for i in range(4):
        rows.enter(ids_of(i, 5))
    for n in (1, 2, 1, 4):
        rows.step([3] * n)
    assert rows.buckets == [Bucket(1, 256), Bucket(4, 256)]


@pytest.mark.parametrize(
    ("needed", "smallest", "most", "size"),
    [
        (1, 1, 8, 1),
        (2, 1, 8, 2),
        (3, 1, 8, 4),
        (6, 1, 6, 6),
        (1, 256, 512, 256),
        (256, 256, 512, 256),
        (257, 256, 512, 512),
        (300, 256, 364, 364),
        (5, 256, 100, 100),
    ],
)
def test_in_doublings(needed: int, smallest: int, most: int, size: int) -> None:
    assert in_doublings(needed, smallest, most) == size


def drafts(source: tuple[Any, Any], recorder: TapeRecorder | None) -> Iterator[list[tuple[int, ...]]]:
    """Rollouts of three requests, of which one is rejected each time, and one leaves."""
    model, tokenizer = source
    backend = ModelDraft(ModelRunner(model, 256, recorder), read_huggingface(tokenizer))
    contexts = {i: tokenizer(text).input_ids for i, text in enumerate(tiny.CORPUS[:3])}
    for step in range(4):
        asks = {i: Rollout(tuple(ids), stable=0, max_tokens=4 + i) for i, ids in contexts.items()}
        answers = backend.answer(asks)
        yield [answers[i].token_ids for i in contexts]
        for i, ids in contexts.items():
            ids.extend(answers[i].token_ids if i != step % 3 else [7 + step])
        if step == 1:
            backend.release(0)
            del contexts[0]


@pytest.mark.parametrize("source", [tiny.llama, tiny.gemma3])
def test_drafts_are_the_same(source: Callable[[], tuple[Any, Any]]) -> None:
    tape = TapeRecorder()
    assert list(drafts(source(), tape)) == list(drafts(source(), None))
    assert tape.replayed == 24


class ReadsOnTheHost(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (1.0 if float(x.abs().max()) > -1 else 2.0)


def test_a_model_that_cannot_be_recorded_runs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    model.model.layers[1].mlp = ReadsOnTheHost(model.model.layers[1].mlp)
    rows = Rows(model)
    rows.enter(ids_of(1, 5))
    with caplog.at_level(logging.WARNING):
        for token in (1, 2, 3):
            rows.step([token])
    (record,) = caplog.records
    assert "without CUDA graphs" in record.message and "reads values on the host" in record.message
    assert rows.tape.recorded == 0


class Failing:
    """Fails as torch does: first in the call, then, on the way out, at the end of the capture."""

    def record(self, call: Callable[[], torch.Tensor]) -> Recording:
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


class Wrong:
    def record(self, call: Callable[[], torch.Tensor]) -> Recording:
        return Recording(call() * 1.01, lambda: None)


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [(Failing(), "operation not permitted when"), (Wrong(), "a replayed step is off by")],
)
def test_a_recording_that_fails_is_told_once(
    recorder: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Rows(small())
    rows.runner = ModelRunner(rows.model, 64, recorder)
    rows.enter(ids_of(1, 5))
    with caplog.at_level(logging.WARNING):
        for token in (1, 2, 3):
            rows.step([token])
    (record,) = caplog.records
    assert reason in record.message and "\n" not in record.message
    assert rows.buckets == []


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: x[0].item(),
        lambda x: bool(x[0] > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: x.to("meta"),
        lambda x: torch.argwhere(x),
        lambda x: torch.nn.functional.one_hot(x.long()),
        lambda x: x.clone().index_put_((x > 0,), x[0]),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_needs_the_host_is_refused(reads: Callable[[torch.Tensor], Any], inference: bool) -> None:
    x = torch.arange(4.0)
    with torch.inference_mode(inference), pytest.raises(RuntimeError, match=r"host|between devices"):
        with graphs._NothingOnTheHost():
            reads(x)
    with torch.inference_mode(inference), graphs._NothingOnTheHost():
        x[torch.arange(2)].softmax(-1).to(torch.float64)


class Cuda:
    """torch.cuda as :class:`CudaRecorder` uses it: notes what happens, and on which stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.current = "caller"
        real_graph = inspect.signature(torch.cuda.graph)
        outer = self

        class Stream:
            def __init__(self, device: Any = None, name: str = "side") -> None:
                self.name = name

            def wait_stream(self, other: Stream) -> None:
                outer.events.append(f"{self.name} waits for {other.name}")

        class Graph:
            def replay(self) -> None:
                outer.events.append("replay")

        @contextlib.contextmanager
        def on(stream: Stream) -> Iterator[None]:
            before, outer.current = outer.current, stream.name
            yield
            outer.current = before

        @contextlib.contextmanager
        def capture(*args: Any, **kwargs: Any) -> Iterator[None]:
            given = real_graph.bind(*args, **kwargs).arguments
            assert given["pool"] == "the pool" and given["stream"].name == "side"
            outer.events.append("capture")
            yield
            outer.events.append("captured")

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name=self.current))
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "stream", on)
        monkeypatch.setattr(torch.cuda, "graph", capture)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "the pool")


def test_capturing_warms_up_on_its_own_stream_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    output = torch.zeros(1)

    def call() -> torch.Tensor:
        cuda.events.append(f"call on {cuda.current}")
        return output

    recording = CudaRecorder(torch.device("cuda:0")).record(call)
    recording.replay()
    warm, run = ["side waits for caller"], "call on side"
    end = ["caller waits for side", "replay"]
    assert cuda.events == [*warm, run, run, "capture", run, "captured", *end]
    assert recording.output is output


def test_steps_are_captured_on_gpus_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    Cuda(monkeypatch)
    monkeypatch.delenv("ANYDRAFT_ENFORCE_EAGER", raising=False)
    assert select._recorder(torch.device("cpu")) is None
    assert isinstance(select._recorder(torch.device("cuda")), CudaRecorder)
    monkeypatch.setenv("ANYDRAFT_ENFORCE_EAGER", "0")
    assert isinstance(select._recorder(torch.device("cuda")), CudaRecorder)
    monkeypatch.setenv("ANYDRAFT_ENFORCE_EAGER", "1")
    assert select._recorder(torch.device("cuda")) is None
