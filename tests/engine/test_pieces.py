"""The text of a stream split by the source of its tokens."""

from __future__ import annotations

import pytest

from anydraft.engine import Engine
from anydraft.engine.outputs import Delta, RequestStats
from anydraft.engine.pieces import Piece, Pieces
from anydraft.rules.params import SamplingParams
from anydraft.vocab.vocabulary import Vocabulary
from tests import tiny

BYTES = Vocabulary(tokens=(b"a", b"bc", b"\xf0\x9f", b"\x98\x80", b"!"), controls={}, stop_ids=frozenset())


def delta(text: str, *tokens: tuple[int, str]) -> Delta:
    return Delta("x", text, tuple(t for t, _ in tokens), tuple(s for _, s in tokens), RequestStats())


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    pieces = Pieces(BYTES)
    assert pieces.push(delta("a", (0, "accepted"), (2, "corrected"))) == (Piece("a", "accepted"),)
    assert pieces.push(delta("😀bc", (3, "bonus"), (1, "target"))) == (
        Piece("😀", "bonus"),
        Piece("bc", "target"),
    )


def test_text_that_was_held_back_keeps_its_sources() -> None:
    pieces = Pieces(BYTES)
    assert pieces.push(delta("ab", (0, "accepted"), (1, "bonus"))) == (
        Piece("a", "accepted"),
        Piece("b", "bonus"),
    )
    assert pieces.push(delta("")) == ()
    assert pieces.push(delta("c!", (4, "target"))) == (Piece("c", "bonus"), Piece("!", "target"))


def test_text_that_was_cut_is_no_piece() -> None:
    assert Pieces(BYTES).push(delta("b", (1, "accepted"), (4, "bonus"))) == (Piece("b", "accepted"),)


def test_an_incomplete_character_at_the_end() -> None:
    pieces = Pieces(BYTES)
    assert pieces.push(delta("a", (0, "target"))) == (Piece("a", "target"),)
    assert pieces.push(delta("\ufffd", (2, "corrected"))) == (Piece("\ufffd", "corrected"),)


@pytest.mark.parametrize("stop", [None, "qu", ["ov", "zz"]])
def test_the_pieces_of_real_streams_are_their_text(stop: str | list[str] | None) -> None:
    engine = Engine(tiny.llama(), tiny.llama(), method="standard", dtype="float32")
    for seed in range(4):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=40, ignore_eos=True, stop=stop)
        pieces = Pieces(engine.pair.target_vocabulary)
        for each in engine.stream("größer 😀", params):
            assert "".join(p.text for p in pieces.push(each)) == each.text
