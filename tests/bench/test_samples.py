from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from anydraft.bench.lost import script_of
from anydraft.bench.samples import KINDS, sample_texts, user_text
from anydraft.errors import UsageError

SCRIPTS = {
    "English": "Latin",
    "French": "Latin",
    "German": "Latin",
    "Russian": "Cyrillic",
    "Chinese": "Han",
    "Japanese": "kana",
    "Arabic": "Arabic",
    "Hindi": "Devanagari",
}


def test_every_kind_has_a_text_of_one_to_two_kilobytes():
    texts = sample_texts()
    assert list(texts) == list(KINDS.values())
    assert all(1000 <= len(text.encode()) <= 2000 for text in texts.values())


@pytest.mark.parametrize(("kind", "script"), SCRIPTS.items())
def test_texts_are_in_their_script(kind: str, script: str):
    letters = Counter(script_of(c.encode()) for c in sample_texts()[kind] if c.isalpha())
    assert letters.most_common(1)[0][0] == script


def test_the_code_is_code():
    compile(sample_texts()["Python code"], "sample", "exec")


def test_user_text_keeps_every_byte(tmp_path: Path):
    path = tmp_path / "own.txt"
    path.write_bytes("a\r\nb\té".encode())
    assert user_text(str(path)) == "a\r\nb\té"


def test_a_long_user_text_is_cut_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "long.txt"
    path.write_text("ab " * 100_000)
    assert len(user_text(str(path))) == 50_000
    assert "50000" in caplog.text


@pytest.mark.parametrize(
    ("content", "reason"), [(b" \n", "no text"), (b"ab\xff", "no UTF-8"), (None, "cannot be read")]
)
def test_unusable_user_texts_are_named(tmp_path: Path, content: bytes | None, reason: str):
    path = tmp_path / "own.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=reason) as error:
        user_text(str(path))
    assert str(path) in str(error.value)
