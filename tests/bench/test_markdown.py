from __future__ import annotations

import pytest

from anydraft.bench.markdown import code, table


def test_table_is_padded_and_aligned():
    assert table(["name", "n"], [["a", 1], ["long name", 1234]], "lr").splitlines() == [
        "| name      |    n |",
        "| --------- | ---: |",
        "| a         |    1 |",
        "| long name | 1234 |",
    ]


def test_cells_keep_to_their_row_and_column():
    assert table(["x"], [["a|b\nc"]]).splitlines()[2] == r"| a\|b c |"


def test_wide_characters_take_two_columns():
    assert table(["x"], [["書書"], ["abcd"]]).splitlines()[2:] == ["| 書書 |", "| abcd |"]


@pytest.mark.parametrize(
    ("text", "shown"), [("a", "`a`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("``", "``` `` ```")]
)
def test_code_survives_backquotes(text: str, shown: str):
    assert code(text) == shown
