"""The step between a host and a method, with tables for models and a host that makes trouble."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import pytest
import torch

from anydraft.methods.base import Answer, Ask, Rollout
from anydraft.methods.costs import CostModel
from anydraft.methods.select import make_method
from anydraft.plugins.drafter import Drafter, Row
from anydraft.plugins.report import IntervalLog, StepRecord
from anydraft.plugins.requests import RequestTracker
from tests.plugins.hosts import HostRequest, TableHost, alone
from tests.proof.worlds import Table, TableDraft, ToyTokenizer, World

K = 3
WORLD = World(
    "merges",
    ToyTokenizer(["a", "b", "ab", "ba", "bb"], ("<eos>",)),
    ToyTokenizer(["b", "a", "bab", "aa"], ("<bos>", "<eos>"), bos="<bos>"),
)
BOS = 4


class CountingDraft(TableDraft):
    """Adds the counters that a host's draft has, and keeps the contexts of the last step."""

    def __init__(self) -> None:
        super().__init__(WORLD.draft_table, WORLD.draft)
        self.num_forwards = 0
        self.on_kernels = False
        self.prefill_time = 0.0
        self.contexts: list[tuple[int, ...]] = []
        self.keys: set[Hashable] = set()

    def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
        self.contexts += [tuple(ask.context) for ask in asks.values() if isinstance(ask, Rollout)]
        self.keys |= set(asks)
        self.num_forwards += max(ask.max_tokens for ask in asks.values() if isinstance(ask, Rollout))
        return super().answer(asks)

    def release(self, key: Hashable) -> None:
        super().release(key)
        self.keys.discard(key)


class Clock:
    """Reads what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def drafter(
    method: str = "slem",
    draft: CountingDraft | None = None,
    *,
    costs: CostModel | None = None,
    keep_steps: int = 64,
    clock: Clock | None = None,
    agree: Callable[[float], float] = float,
) -> Drafter:
    made = make_method(
        method,
        target_tokenizer=WORLD.target,
        target_vocab_size=WORLD.target_table.vocab_size,
        draft_tokenizer=WORLD.draft if draft else None,
        bridge=WORLD.bridge if draft else None,
        num_speculative_tokens=K,
        costs=costs,
    )
    assert made is not None
    return Drafter(made, draft, costs, RequestTracker(keep_steps=keep_steps), clock or Clock(), agree)


def proposing(drafter: Drafter) -> object:
    def propose(sampled: list[list[int]], lengths: np.ndarray, tokens: np.ndarray) -> list[list[int]]:
        rows = [Row(tokens[i, : lengths[i]], bool(emitted), K) for i, emitted in enumerate(sampled)]
        drafts = drafter.step(rows)
        assert all(len(d) <= K for d in drafts)
        return drafts

    return propose


def requests(count: int, seed: int = 0) -> list[HostRequest]:
    rng = random.Random(seed)
    return [
        HostRequest(f"r{i}", [rng.randrange(5) for _ in range(rng.randint(1, 9))], rng.randint(5, 30))
        for i in range(count)
    ]


def host(drafter: Drafter, **options: object) -> TableHost:
    # No end token: the table's texts are as long as asked.
    table = Table(5, 7, sharpness=1.2)
    return TableHost(table, proposing(drafter), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["slem", "tli", "auto"])
@pytest.mark.parametrize("trouble", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("chunk", [3, 100])
def test_texts_are_the_targets_own_whatever_the_scheduler_does(
    method: str, trouble: float, chunk: int
) -> None:
    made = host(drafter(method, CountingDraft()), trouble=trouble, chunk=chunk)
    given = requests(12)
    finished = made.run(given)
    assert finished.keys() == {request.name for request in given}
    for request in given:
        own = alone(made.table, request.prompt, request.max_tokens)
        got = finished[request.name]
        assert got == own[: len(got)]
        assert len(got) == request.max_tokens or trouble


@pytest.mark.parametrize("trouble", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("chunk", [3, 100])
def test_every_row_is_drafted_for_with_its_own_text(trouble: float, chunk: int) -> None:
    """The draft's contexts in each step are exactly the texts of the rows that emit, in its own tokens."""
    draft = CountingDraft()
    made = host(drafter("slem", draft), trouble=trouble, chunk=chunk, seed=1)
    expected: list[Counter[tuple[int, ...]]] = []

    def remember(emitting: Sequence[HostRequest]) -> None:
        expected.append(
            Counter(
                (BOS, *WORLD.draft.encode(WORLD.target.vocabulary.bytes_of(r.ids).decode())) for r in emitting
            )
        )

    propose = made.propose

    def checking(*given: object) -> list[list[int]]:
        draft.contexts = []
        drafts = propose(*given)  # type: ignore[arg-type]
        assert Counter(draft.contexts) == expected[-1]
        return drafts

    made.on_step, made.propose = remember, checking  # type: ignore[assignment]
    made.run(requests(12, seed=1))
    assert made.num_accepted > 3


def test_finished_requests_leave_nothing() -> None:
    draft = CountingDraft()
    made = drafter("slem", draft, keep_steps=5)
    running = host(made, trouble=0.2)
    running.run(requests(90))
    assert made.num_requests < 30
    for _ in range(7):
        made.step([])
    assert made.num_requests == 0
    assert draft.keys == set()


def test_forgetting_is_starting_anew() -> None:
    """As after a flush of the host's cache: the same rows are new requests, and no keys and values are kept."""
    draft = CountingDraft()
    made = drafter("slem", draft)
    rows = [Row(np.array([1, 2, 3]), True, K), Row(np.array([2, 2]), True, K)]
    before = made.step(rows)
    assert (made.num_requests, len(draft.keys)) == (2, 2)
    made.forget()
    assert (made.num_requests, draft.keys) == (0, set())
    assert made.step(rows) == before
    assert made.record.num_emitted_tokens == 0


def test_lookup_needs_no_draft() -> None:
    made = drafter("lookup")
    assert made.step([Row(np.array([1, 2, 3, 1, 2]), True, K)]) == [[3, 1, 2]]
    assert made.step([Row(np.array([1, 2, 3, 1, 2, 3]), True, 1)]) == [[1]]
    assert made.step([Row(np.array([1, 2, 3, 1, 2, 3, 0]), True, 0)]) == [[]]


def test_rows_in_the_middle_of_their_prompt_are_left_alone() -> None:
    draft = CountingDraft()
    made = drafter("slem", draft)
    assert made.step([Row(np.array([0, 1]), False, K), Row(np.array([1]), True, K)])[0] == []
    assert made.num_requests == 1
    assert len(draft.contexts) == 1


def test_a_continued_conversation_keeps_what_was_read() -> None:
    """A new request that begins with all of a finished one's text is its continuation."""
    draft = CountingDraft()
    made = drafter("slem", draft)
    made.step([Row(np.array([0, 1, 2]), True, K)])
    made.step([Row(np.array([0, 1, 2, 0, 0, 1, 1]), True, K)])
    assert made.num_requests == 1
    assert draft.contexts[-1] == (BOS, *WORLD.draft.encode("ababaabb"))


def steps(made: Drafter, clock: Clock, texts: Sequence[Sequence[Sequence[int]]], seconds: float) -> None:
    for rows in texts:
        made.step([Row(np.array(row), True, K) for row in rows])
        clock.now += seconds


def test_a_step_of_the_same_rows_tells_what_the_target_costs() -> None:
    costs, clock = CostModel(), Clock()
    made = drafter("auto", CountingDraft(), costs=costs, clock=clock)
    steps(made, clock, [[[0], [1]]], 9.0)  # the first of its size pays for what is set up once
    steps(made, clock, [[[0, 1], [1, 1]], [[0, 1, 1], [1, 1, 1]]], 0.25)
    assert costs.num_rows == 2
    assert dict(costs.plain) == {2: pytest.approx(0.25)}


def test_a_step_that_read_a_prompt_or_waited_tells_nothing() -> None:
    costs, clock = CostModel(), Clock()
    made = drafter("auto", CountingDraft(), costs=costs, clock=clock)
    steps(made, clock, [[[3]], [[3, 1]], [[3, 1, 1]]], 0.25)
    known = dict(costs.target)
    steps(made, clock, [[[0]], [[0, 1], [2]], [[0, 1, 1]], []], 0.5)
    assert costs.target == known
    steps(made, clock, [[[4]]], 100.0)
    steps(made, clock, [[[4, 1]]], 0.5)
    assert costs.target == known


def test_a_step_that_read_whole_prompts_beside_others_tells_what_a_token_of_them_costs() -> None:
    costs, clock = CostModel(), Clock()
    made = drafter("auto", CountingDraft(), costs=costs, clock=clock)
    told: list[tuple[int, float]] = []
    costs.observe_prompt = lambda *observed: told.append(observed)  # type: ignore[method-assign]
    steps(made, clock, [[[3]], [[3, 1], [0, 1, 2]]], 0.5)
    assert told == [(1 + 3, 0.5)]
    steps(made, clock, [[[2]]], 0.5)
    assert len(told) == 1, "there may have been a pause"
    steps(made, clock, [[[2, 1], [3, 1, 1]]], 0.5)
    assert len(told) == 1, "a request that was out of the batch is not new"
    made.step([Row(np.array([2, 1, 1]), True, K), Row(np.array([4, 4, 4]), False, K)])
    clock.now += 0.5
    made.step([Row(np.array([2, 1, 1, 1]), True, K), Row(np.array([4, 4, 4, 4, 4]), True, K)])
    assert len(told) == 1, "the other half of the prompt was read before"


def test_the_drafts_cost_is_a_forward_of_it() -> None:
    class Slow(CountingDraft):
        def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
            clock.now += 0.3
            self.prefill_time += 0.1
            self.num_forwards += 2 - max(a.max_tokens for a in asks.values() if isinstance(a, Rollout))
            return super().answer(asks)

    costs, clock = CostModel(), Clock()
    made = drafter("slem", Slow(), costs=costs, clock=clock)
    made.step([Row(np.array([0]), True, K)])
    assert costs.draft == {}
    made.step([Row(np.array([0, 0]), True, K)])
    assert costs.draft == {1: pytest.approx(0.1)}
    assert costs.reading_time == pytest.approx(0.2)


def test_how_long_a_forgotten_request_became_is_remembered() -> None:
    costs = CostModel()
    made = drafter("slem", CountingDraft(), costs=costs)
    made.step([Row(np.array([0, 1, 2]), True, K)])
    made.step([Row(np.array([0, 1, 2, 0, 1]), True, K)])
    told: list[int] = []
    costs.observe_output = told.append  # type: ignore[method-assign]
    for _ in range(66):
        made.step([])
    assert told == [3]


def test_places_that_are_taken_again_are_told_from_those_that_stay_empty() -> None:
    costs = CostModel()
    made = drafter("lookup", costs=costs)
    told: list[tuple[int, int]] = []
    costs.observe_places = lambda *counts: told.append(counts)  # type: ignore[method-assign]

    def step(*rows: tuple[list[int], bool]) -> None:
        made.step([Row(np.array(ids), emits, K) for ids, emits in rows])

    step(([0, 1], True), ([0, 2], True))
    step(([0, 1, 1], True), ([0, 2, 1], True), ([0, 3], False))
    assert [taken for left, taken in told if left] == []
    step(([0, 1, 1, 1], True), ([0, 3, 1, 1], False), ([0, 4, 4], True))
    step(([0, 3, 1, 1, 1], True), ([0, 4, 4, 4], True))
    step(([0, 2, 2], True), ([0, 1, 3], True))
    assert [(left, taken) for left, taken in told if left] == [(1, 1), (1, 0)], (
        "those of the last step all ended"
    )


def test_auto_turns_itself_off_where_the_draft_is_too_dear() -> None:
    costs, clock = CostModel(), Clock()

    class Dear(CountingDraft):
        def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
            before = self.num_forwards
            answers = super().answer(asks)
            clock.now += 1.0 * (self.num_forwards - before)
            return answers

    draft = Dear()
    made = drafter("auto", draft, costs=costs, clock=clock)
    text, rng = [0], random.Random(3)
    for _ in range(60):
        made.step([Row(np.array(text), True, K)])
        clock.now += 0.1
        text = [*text, rng.randrange(5)]
    assert draft.num_forwards < 30
    assert "off" in made.record.decision


def test_the_record_counts_as_vllm_does() -> None:
    made = drafter("lookup")
    made.step([Row(np.array([1, 2, 3, 1, 2]), True, K)])
    assert made.record.line() == ""
    made.step([Row(np.array([1, 2, 3, 1, 2, 3, 1, 0]), True, K)])  # 2 of 3 accepted
    made.step([Row(np.array([1, 2, 3, 1, 2, 3, 1, 0, 4]), True, K)])  # nothing was proposed
    record = made.record
    assert (record.num_drafts, record.num_draft_tokens, record.num_accepted_tokens) == (1, 3, 2)
    assert record.line().startswith(
        "Mean acceptance length: 2.00, Accepted: 2 tokens, Drafted: 3 tokens, "
        "Avg Draft acceptance rate: 66.7%, Steps with drafts: 1 of 2 (1 copied)"
    )


def test_copies_are_counted_when_the_target_has_checked_them() -> None:
    """However a line falls between the two steps, and not where the request ends instead."""
    made = drafter("lookup")
    made.step([Row(np.array([1, 2, 3, 1, 2]), True, K)])
    assert made.record.num_copied == 0
    made.record = StepRecord()
    made.step([Row(np.array([1, 2, 3, 1, 2, 3, 1, 2, 3]), True, K)])
    assert (made.record.num_drafts, made.record.num_copied) == (1, 1)


def test_a_line_is_due_once_an_interval() -> None:
    clock = Clock()
    log = IntervalLog(10.0, clock)
    due = []
    for clock.now in (3.0, 10.0, 12.0, 25.0, 26.0):
        due.append(log.due())
    assert due == [False, True, False, True, False]
    assert not IntervalLog(0.0, clock).due()


def test_ranks_with_clocks_of_their_own_decide_alike() -> None:
    """The first tells its measurements; the other, whose clock runs wild, must ask at the same places."""
    told: list[float] = []
    rng = random.Random(5)

    def tell(seconds: float) -> float:
        told.append(seconds)
        return seconds

    clock, wild = Clock(), Clock()
    first = drafter("auto", CountingDraft(), costs=CostModel(), clock=clock, agree=tell)
    other = drafter("auto", CountingDraft(), costs=CostModel(), clock=wild, agree=lambda seconds: told.pop(0))
    texts = [[0], [1, 2]]
    for _ in range(80):
        rows = [Row(np.array(text), True, K) for text in texts]
        assert first.step(rows) == other.step(rows)
        assert told == []
        clock.now += 0.05 + 0.01 * len(texts[0]) % 3
        wild.now += rng.random() * 20
        texts = [[*text, rng.randrange(5)] for text in texts]


@pytest.mark.parametrize("on_kernels", [False, True])
def test_a_draft_on_the_kernels_has_the_cores_to_itself(on_kernels: bool) -> None:
    """Else torch's own threads spin on them after each small operator."""
    seen: list[int] = []

    class Watching(CountingDraft):
        def answer(self, asks: Mapping[Hashable, Ask]) -> dict[Hashable, Answer]:
            seen.append(torch.get_num_threads())
            return super().answer(asks)

    draft = Watching()
    draft.on_kernels = on_kernels
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        host(drafter(draft=draft)).run(requests(2))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1 if on_kernels else 3}
