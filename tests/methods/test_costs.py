"""Times on the line: how much each measurement counts."""

from __future__ import annotations

from anydraft.methods.costs import CostModel


def test_what_was_measured_once_counts_less_than_what_was_measured_often() -> None:
    model = CostModel()
    for _ in range(5):
        for n in (1, 2, 4, 8):
            model.observe_target(n, 0.1)
    model.observe_target(9, 0.2)
    assert model.target_time(9) < 0.15
    for _ in range(4):
        model.observe_target(9, 0.2)
    assert model.target_time(9) > 0.15
