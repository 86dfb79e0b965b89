"""What of the target's vocabulary the draft has no token for, in words."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from anydraft.vocab.bridge import Bridge

_SCRIPTS = {
    "LATIN": "Latin",
    "CYRILLIC": "Cyrillic",
    "GREEK": "Greek",
    "CJK": "Han",
    "HIRAGANA": "kana",
    "KATAKANA": "kana",
    "HANGUL": "Hangul",
    "ARABIC": "Arabic",
    "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari",
    "BENGALI": "Bengali",
    "TAMIL": "Tamil",
    "TELUGU": "Telugu",
    "THAI": "Thai",
    "ARMENIAN": "Armenian",
    "GEORGIAN": "Georgian",
}
"""First word of a letter's Unicode name -> its script."""

_LONG_RUN = 4


@dataclass(frozen=True)
class LostToken:
    """A target token without a draft token.

    Attributes:
        id: of the target.
        text: how it reads, quoted, runs shortened (``'\\n' + ' ' * 8``).
        count: occurrences in the text.
    """

    id: int
    text: str
    count: int


@dataclass(frozen=True)
class ScriptOverlap:
    """Tokens of one kind in the target's vocabulary, and how many of them the draft has too."""

    script: str
    num_tokens: int
    num_common: int


def lost_tokens(bridge: Bridge, target_ids: Iterable[int], most: int) -> tuple[LostToken, ...]:
    """The ``most`` frequent text tokens among ``target_ids`` that the draft lacks, most frequent first."""
    tokens = bridge.target.tokens
    counts = Counter(i for i in target_ids if tokens[i] and bridge.target_to_draft[i] < 0)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(LostToken(i, show(tokens[i] or b""), count) for i, count in ranked[:most])


def script_overlap(bridge: Bridge) -> tuple[ScriptOverlap, ...]:
    """The target's text tokens by script, the script that loses most first."""
    total: Counter[str] = Counter()
    common: Counter[str] = Counter()
    for i, data in bridge.target.text_items():
        script = script_of(data)
        total[script] += 1
        common[script] += bool(bridge.target_to_draft[i] >= 0)
    found = (ScriptOverlap(script, n, common[script]) for script, n in total.items())
    return tuple(sorted(found, key=lambda s: (s.num_common - s.num_tokens, s.script)))


def script_of(data: bytes) -> str:
    """The script of the first letter; without letters "digits", "white space" or "symbols"."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "parts of characters"
    if text.isspace():
        return "white space"
    for c in text:
        if c.isalpha():
            return _script_of_letter(c)
    return "digits" if any(c.isdigit() for c in text) else "symbols"


@cache
def _script_of_letter(letter: str) -> str:
    return _SCRIPTS.get(unicodedata.name(letter, "").partition(" ")[0], "other letters")


def show(data: bytes) -> str:
    """Bytes as a reader can tell them apart: quoted, control characters escaped, runs as ``' ' * 8``."""
    parts: list[str] = []
    plain = ""
    for c, run in groupby(data.decode("utf-8", errors="surrogateescape")):
        length = len(list(run))
        if length < _LONG_RUN:
            plain += c * length
            continue
        if plain:
            parts.append(_quoted(plain))
        parts.append(f"{_quoted(c)} * {length}")
        plain = ""
    if plain or not parts:
        parts.append(_quoted(plain))
    return " + ".join(parts)


def _quoted(text: str) -> str:
    """``repr`` in single quotes, a byte that is no character as ``\\xNN``."""
    return "'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how surrogateescape keeps a byte
        return f"\\x{ord(character) - 0xDC00:02x}"
    return "\\'" if character == "'" else repr(character)[1:-1]
