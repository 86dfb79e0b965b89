"""Who gives way when the draft's keys and values do not hold everyone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pytest

from anydraft.errors import UsageError
from anydraft.methods.base import Answer, Ask, Drafted, Rollout
from anydraft.plugins.capacity import BoundedDraft, require_room
from anydraft.plugins.own import RectangularCapacity, load_own, other_cores
from anydraft.plugins.vllm.blocks import BlockTables
from anydraft.vocab.readers import read_tokenizer
from tests import tiny


class Inner:
    """Keeps rows as :class:`~anydraft.models.draft.ModelDraft` does, and takes blocks for them."""

    tokenizer: Any = None
    vocab_size = 10
    num_forwards = 0
    prefill_time = 0.0
    on_kernels = False

    def __init__(self, tables: BlockTables) -> None:
        self.tables = tables
        self.order: list[Hashable] = []

    @property
    def num_rows(self) -> int:
        return len(self.order)

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        for key, ask in asks.items():
            if key not in self.order:
                self.order.append(key)
            assert isinstance(ask, Rollout)
            self.tables.grow(self.order.index(key), len(ask.context) + ask.max_tokens)
        return {key: Drafted((1,)) for key in asks}

    def release(self, key: Hashable) -> None:
        if key in self.order:
            index, last = self.order.index(key), self.order.pop()
            if last != key:
                self.order[index] = last
                self.tables.move_row(len(self.order), index, 0)


def bounded(num_blocks: int) -> tuple[BoundedDraft, BlockTables]:
    tables = BlockTables(num_blocks, 4)
    return BoundedDraft(Inner(tables), tables, 100), tables  # type: ignore[arg-type]


def ask(length: int, max_tokens: int = 1) -> Rollout:
    return Rollout([0] * length, 0, max_tokens)


def test_a_row_takes_whole_blocks_and_gives_them_back() -> None:
    tables = BlockTables(5, 4)
    assert tables.grow(1, 4) == [0]
    assert tables.grow(1, 5) == [0, 1]
    assert tables.grow(0, 1) == [2]
    tables.move_row(1, 0, 5)
    assert tables.grow(0, 5) == [0, 1]
    assert tables.num_free == 3
    tables.keep_rows(0)
    assert tables.num_free == 5


def test_everyone_fits() -> None:
    draft, tables = bounded(4)
    assert draft.answer({"a": ask(3), "b": ask(7)}) == {"a": Drafted((1,)), "b": Drafted((1,))}
    assert tables.num_free == 1
    assert (draft.num_evictions, draft.num_refusals) == (0, 0)


def test_the_longest_absent_gives_way() -> None:
    draft, _ = bounded(4)
    draft.answer({"a": ask(3), "b": ask(3)})
    draft.answer({"a": ask(3)})
    draft.answer({"c": ask(11)})
    assert draft.num_evictions == 1  # b
    assert len(draft) == 2
    draft.answer({"a": ask(3)})
    assert draft.num_evictions == 1
    assert draft.answer({"b": ask(3)}) == {"b": Drafted((1,))}
    assert draft.num_evictions == 2  # c


def test_the_longest_who_asks_goes_without_a_draft() -> None:
    draft, tables = bounded(4)
    answers = draft.answer({"a": ask(3), "b": ask(13), "c": ask(7)})
    assert answers == {"a": Drafted((1,)), "b": Drafted(()), "c": Drafted((1,))}
    assert draft.num_refusals == 1
    assert tables.num_free == 1


def test_released_requests_leave_nothing() -> None:
    draft, tables = bounded(8)
    for round_ in range(20):
        draft.answer({(round_, i): ask(3) for i in range(4)})
        for i in (2, 0, 3, 1):
            draft.release((round_, i))
        draft.release("unknown")
    assert tables.num_free == 8
    assert len(draft) == 0


@pytest.mark.parametrize(
    ("lengths", "fits"),
    [([], True), ([100], True), ([129], False), ([60, 64], True), ([10] * 3, True), ([33] * 3, False)],
)
def test_a_rectangle_holds_its_longest_row_as_often_as_rows(lengths: list[int], fits: bool) -> None:
    """Rows and slots grow by doubling."""
    assert RectangularCapacity(128).fits(lengths) is fits


def test_a_cache_that_does_not_hold_one_request_is_refused(tmp_path: Path) -> None:
    model, tokenizer = tiny.gemma3()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    known = read_tokenizer(tokenizer)

    def load(kv_cache_gib: float, max_context: int) -> BoundedDraft:
        return load_own(
            str(tmp_path),
            known,
            dtype="float32",
            device="cpu",
            quantization=None,
            max_context=max_context,
            kv_cache_gib=kv_cache_gib,
        )

    for max_context in (40, 256):
        with pytest.raises(UsageError, match=r"^kv_cache_gib=1e-06 holds \d+ tokens of the draft ") as caught:
            load(1e-6, max_context)
        load(float(str(caught.value).rpartition(" ")[2]), max_context)  # what the message asks for will do


@pytest.mark.parametrize(
    ("num_tokens", "max_context", "fits"),
    [(255, 9999, False), (256, 9999, True), (31, 32, False), (32, 32, True)],
)
def test_one_request_wants_256_tokens_or_all_of_a_shorter_context(
    num_tokens: int, max_context: int, fits: bool
) -> None:
    with contextlib.nullcontext() if fits else pytest.raises(UsageError, match=r"give at least 0\.00\d+$"):
        require_room("d", 1e-6, num_tokens, max_context, 1000)


def test_a_thread_that_ends_while_cores_are_counted_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, no_thread = (
        os.listdir("/proc/self/task"),
        str(2**22 + 1),
    )  # beyond the largest id that Linux gives
    monkeypatch.setattr(os, "listdir", lambda path: [*threads, no_thread])
    before = os.sched_getaffinity(0)
    with other_cores():
        assert os.sched_getaffinity(0) >= before
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("own", "others", "given"),
    [
        ({0}, [{1}], {1}),
        ({0}, [{1}, {0}, {2, 3}], {1, 2, 3}),
        ({0, 1}, [{0, 1}], {0, 1}),
        ({0, 1}, [{2}], {0, 1, 2}),
        ({0}, [{0}], {0}),
    ],
)
def test_threads_of_a_bound_process_leave_its_core_alone(
    own: set[int], others: list[set[int]], given: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[set[int]] = []
    monkeypatch.setattr(os, "listdir", lambda path: [str(7 + i) for i in range(len(others))])
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: others[thread - 7] if thread else own)
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: set_to.append(cores))
    with other_cores():
        assert set_to == [given]
    assert set_to == [given, own]
