from __future__ import annotations

from anydraft.models.growth import Allocation


def limited(limit: int | None) -> Allocation:
    made = Allocation(max_slots=5000, slot_bytes=10)
    made.limit = limit
    return made


def test_it_doubles_where_nothing_limits_it() -> None:
    allocation = limited(None)
    assert not allocation.grow(1, 256)
    assert allocation.grow(3, 257)
    assert (allocation.rows, allocation.slots) == (4, 512)
    assert allocation.grow(4, 4000)
    assert allocation.slots == 4000
    assert allocation.grow(4, 4001)
    assert allocation.slots == 5000


def test_under_a_limit_it_takes_what_is_left_but_never_less_than_needed() -> None:
    allocation = limited(10 * 3 * 400)
    assert allocation.grow(3, 300)
    assert (allocation.rows, allocation.slots) == (3, 400)
    assert not allocation.grow(3, 400)


def test_long_rows_that_left_make_room_for_more_short_ones() -> None:
    allocation = limited(10 * 1000)
    allocation.grow(1, 1000)
    assert allocation.fits(4, 250)
    assert allocation.make_room(4, 250)
    assert (allocation.rows, allocation.slots) == (1, 250)
    assert allocation.grow(4, 240)
    assert allocation.bytes_for(allocation.rows, allocation.slots) <= 10_000
    assert not allocation.make_room(4, 250)
