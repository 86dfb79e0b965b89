"""Times by size on a machine whose speed changes; no clock."""

from __future__ import annotations

import random

import pytest

from anydraft.methods.step_times import StepTimes


def measured(*times: tuple[int, float]) -> StepTimes:
    found = StepTimes()
    for size, seconds in times:
        found.observe(size, seconds)
    return found


def test_nothing_is_known_before_the_first_measurement() -> None:
    assert StepTimes().at(3) == 0.0


def test_one_size_stands_for_all() -> None:
    found = measured((4, 0.1))
    assert [found.at(n) for n in (1, 4, 9)] == pytest.approx([0.1, 0.1, 0.1])


def test_a_moment_of_trouble_hardly_counts() -> None:
    found = measured(*[(1, 0.1)] * 10, (1, 60.0))
    assert found.at(1) < 0.13


def test_sizes_out_of_order_share_their_mean_by_how_often_they_were_measured() -> None:
    assert measured((1, 0.10), (5, 0.05)).at(3) == pytest.approx(0.075)
    assert measured(*[(1, 0.10)] * 3, (5, 0.06)).at(3) == pytest.approx(0.09)


def test_a_single_measurement_between_known_sizes_counts_half() -> None:
    found = measured(*[(1, 0.1), (9, 0.1)] * 3, (4, 0.4))
    assert found[4] == pytest.approx(0.2)


def test_a_machine_that_slows_down_does_not_make_larger_forwards_look_dear() -> None:
    """Each size is measured in a time of its own; both forwards take the same, and time doubles in between."""
    found = measured((1, 0.1), (6, 0.1))
    for _ in range(10):
        found.observe(1, 0.1)
        found.observe(6, 0.1)
    for _ in range(20):
        found.observe(6, 0.2)
    assert found.at(6) == pytest.approx(0.2, rel=0.02)
    assert found.at(1) > 0.17, "what was not measured since follows the machine"


def test_noise_and_drift_leave_the_curve() -> None:
    rng = random.Random(0)
    truth = {1: 1.0, 2: 1.01, 3: 1.02, 4: 1.03, 5: 1.04, 6: 1.04, 7: 1.15, 8: 1.33, 9: 1.38}
    found, speed = StepTimes(), 0.1
    for _ in range(300):
        speed *= rng.uniform(0.97, 1.03)
        size = rng.choice(list(truth))
        found.observe(size, speed * truth[size] * rng.lognormvariate(0.0, 0.05))
    for size in truth:
        assert found.at(size) / found.at(1) == pytest.approx(truth[size], rel=0.06)


def test_a_wrong_first_time_is_mended() -> None:
    found = measured((1, 0.1), (9, 0.4))
    for _ in range(12):
        found.observe(1, 0.1)
        found.observe(9, 0.12)
    assert found.at(9) == pytest.approx(0.12, rel=0.1)
    assert found.at(1) == pytest.approx(0.1, rel=0.1)


def test_beyond_the_largest_the_line_goes_on() -> None:
    assert measured((1, 0.10), (5, 0.14)).at(9) == pytest.approx(0.18)
