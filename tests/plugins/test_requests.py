"""Requests are recognised by their tokens alone."""

from __future__ import annotations

import numpy as np

from anydraft.plugins.requests import KnownTokens, RequestTracker, TrackedRequest


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def keys(found: list[TrackedRequest | None]) -> list[int | None]:
    return [request.key if request else None for request in found]


def grow(tracker: RequestTracker, rows: list[np.ndarray]) -> list[int | None]:
    found = tracker.match(rows)
    for request, row in zip(found, rows, strict=True):
        if request is not None:
            request.tokens.extend(row)
    return keys(found)


def test_known_tokens_grow_and_know_their_continuations() -> None:
    known = KnownTokens(ids(1, 2))
    assert known.is_prefix_of(ids(1, 2))
    assert known.is_prefix_of(ids(1, 2, 9))
    assert not known.is_prefix_of(ids(1))
    assert not known.is_prefix_of(ids(2, 2, 3))
    assert known.extend(ids(1, 2, 3, 4, 5)).tolist() == [3, 4, 5]
    assert known.extend(ids(1, 2, 3, 4, 5)).tolist() == []
    assert len(known) == 5
    assert known.is_prefix_of(ids(1, 2, 3, 4, 5, 6))
    assert not known.is_prefix_of(ids(1, 2, 3, 9, 5, 6))


def test_known_tokens_take_what_is_new_alone() -> None:
    known, written = KnownTokens([7] * 500), [7] * 500
    for count in (1, 0, 3, 2000, 5000):
        written += range(count)
        known.append(range(count))
    assert known.ids.tolist() == written
    assert known.ids.dtype == np.int32


def test_the_host_may_change_its_array_afterwards() -> None:
    tracker = RequestTracker()
    row = ids(1, 2, 3)
    tracker.add(0, row)
    row[:] = 0
    assert keys(tracker.match([ids(1, 2, 3, 4)])) == [0]


def test_rows_change_places() -> None:
    tracker = RequestTracker()
    for i in range(3):
        tracker.add(i, ids(i, 5))
    assert grow(tracker, [ids(2, 5, 1), ids(0, 5, 1), ids(1, 5, 1)]) == [2, 0, 1]
    assert grow(tracker, [ids(1, 5, 1, 1), ids(2, 5, 1, 1)]) == [1, 2]


def test_the_longer_of_two_that_fit_goes_first() -> None:
    """Two requests of one prompt; the second stands where the first stood."""
    tracker = RequestTracker()
    tracker.add(0, ids(1, 2))
    tracker.add(1, ids(1, 2, 3))
    assert grow(tracker, [ids(1, 2, 3, 4), ids(1, 2, 7)]) == [1, 0]


def test_twins_get_a_row_each() -> None:
    tracker = RequestTracker()
    tracker.add(0, ids(1, 2))
    tracker.add(1, ids(1, 2))
    assert grow(tracker, [ids(1, 2, 3), ids(1, 2, 4)]) == [0, 1]
    assert grow(tracker, [ids(1, 2, 4, 5), ids(1, 2, 3, 5)]) == [1, 0]


def test_a_new_request_is_nobody() -> None:
    tracker = RequestTracker()
    tracker.add(0, ids(1, 2, 3))
    assert keys(tracker.match([ids(1, 2), ids(4)])) == [None, None]


def test_a_request_may_be_away_for_a_while() -> None:
    tracker = RequestTracker(keep_steps=3)
    tracker.add(0, ids(1, 2))
    for _ in range(3):
        tracker.match([ids(9)])
        assert tracker.forget_finished() == []
    assert keys(tracker.match([ids(9), ids(1, 2, 3)])) == [None, 0]
    for _ in range(3):
        tracker.match([])
        assert tracker.forget_finished() == []
    tracker.match([])
    assert [request.key for request in tracker.forget_finished()] == [0]
    assert len(tracker) == 0
    assert keys(tracker.match([ids(1, 2, 3)])) == [None]


def test_no_more_of_the_absent_are_remembered_than_allowed() -> None:
    tracker = RequestTracker(max_idle=2)
    for i in range(4):
        tracker.add(0, ids(i))
        tracker.match([])
    assert [request.key for request in tracker.forget_finished()] == [0, 1]
    assert len(tracker) == 2
