from __future__ import annotations

import pytest

from anydraft.bench.lost import lost_tokens, script_of, script_overlap, show
from anydraft.vocab.bridge import Bridge
from tests.bench.pieces import Pieces


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"abc", "'abc'"),
        (b"", "''"),
        (b" " * 8, "' ' * 8"),
        (b"\n" + b" " * 16 + b"return", "'\\n' + ' ' * 16 + 'return'"),
        (b"aaa", "'aaa'"),
        (b"aaaab", "'a' * 4 + 'b'"),
        (b"it's", "'it\\'s'"),
        (b"\t\\", "'\\t\\\\'"),
        ("é中".encode(), "'é中'"),
        (b"\xe4\xb8", "'\\xe4\\xb8'"),
        (b"\xff" * 5, "'\\xff' * 5"),
    ],
)
def test_show(data: bytes, shown: str):
    assert show(data) == shown


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (" the", "Latin"),
        ("été", "Latin"),
        ("-да", "Cyrillic"),
        ("图书", "Han"),
        ("です", "kana"),
        (" ह", "Devanagari"),
        ("،و", "Arabic"),
        ("1234", "digits"),
        ("\n    ", "white space"),
        ("});", "symbols"),
        ("🎉", "symbols"),
        ("ᚠ", "other letters"),
    ],
)
def test_script(text: str, script: str):
    assert script_of(text.encode()) == script


def test_script_of_half_a_character():
    assert script_of("é".encode()[:1]) == "parts of characters"


def test_lost_tokens_are_ranked_by_how_often_they_occur():
    target = Pieces("a", "b", "ab", "bb")
    bridge = Bridge(target.vocabulary, Pieces("a", "b").vocabulary)
    found = lost_tokens(bridge, [3, 0, 2, 3, 1, 3, 2], most=5)
    assert [(t.id, t.text, t.count) for t in found] == [(3, "'bb'", 3), (2, "'ab'", 2)]
    assert [t.id for t in lost_tokens(bridge, [3, 0, 2, 3, 1, 3, 2], most=1)] == [3]


def test_script_overlap_counts_what_the_draft_has():
    target = Pieces("a", "b", "да", "нет", "7")
    overlap = script_overlap(Bridge(target.vocabulary, Pieces("b", "7", "да").vocabulary))
    assert [(s.script, s.num_tokens, s.num_common) for s in overlap] == [
        ("Cyrillic", 2, 1),
        ("Latin", 2, 1),
        ("digits", 1, 1),
    ]
