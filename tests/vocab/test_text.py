from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.errors import UsageError
from anydraft.vocab.text import checked, encode_bytes, incomplete_tail, split_utf8
from anydraft.vocab.vocabulary import Vocabulary


class OneIdAByte:
    """Bytes as ids, except the byte 0xE9, which it does not have; a text start is marked by -1."""

    vocabulary = Vocabulary(tuple(bytes([i]) if i != 0xE9 else None for i in range(256)))

    def encode(self, text: str) -> list[int]:
        return [-1, *text.encode()]

    def encode_continuation(self, text: str) -> list[int]:
        return list(text.encode())


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"U\+D83D at index 3"):
        checked("abc\ud83d")
    assert checked("abc😀") == "abc😀"


@pytest.mark.parametrize("character", ["é", "中", "😀", "\u0800", "\U0010ffff"])
def test_incomplete_tail_is_a_begun_character(character: str) -> None:
    data = character.encode()
    for cut in range(1, len(data)):
        assert incomplete_tail(b"x" + data[:cut]) == cut
    assert incomplete_tail(b"x" + data) == 0


@pytest.mark.parametrize(
    "data", [b"", b"abc", b"\x80", b"\xc3\xa9\xa9", b"\xff", b"\xc0", b"\xed\xa0", b"\xf5\x80", b"\xe0\x80"]
)
def test_bytes_that_no_continuation_makes_valid_are_not_incomplete(data: bytes) -> None:
    assert incomplete_tail(data) == 0


@given(st.binary(max_size=40))
def test_split_loses_nothing_and_tail_agrees_with_the_decoder(data: bytes) -> None:
    assert b"".join(text.encode() + other for text, other in split_utf8(data)) == data
    tail = incomplete_tail(data)
    completions = [bytes([a, b, c]) for a in (0x80, 0x90, 0xBF) for b in (0x80, 0xBF) for c in (0x80, 0xBF)]
    lead = data[len(data) - tail :]
    assert not tail or any(_decodes(lead + more[:n]) for more in completions for n in (1, 2, 3))


def _decodes(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def test_encode_bytes_takes_invalid_bytes_one_by_one_and_leaves_out_what_has_no_id() -> None:
    data = "aé".encode() + b"\xff\xe9" + b"b" + b"\xe4\xb8"
    assert encode_bytes(OneIdAByte(), data, continuation=True) == [*"aé".encode(), 0xFF, 0x62, 0xE4, 0xB8]


def test_only_the_first_stretch_is_the_start_of_a_text() -> None:
    assert encode_bytes(OneIdAByte(), b"a\xffb", continuation=False) == [-1, 0x61, 0xFF, 0x62]
    assert encode_bytes(OneIdAByte(), b"\xffb", continuation=False) == [0xFF, 0x62]
    assert encode_bytes(OneIdAByte(), b"", continuation=False) == []
