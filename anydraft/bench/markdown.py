"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unicodedata import combining, east_asian_width


def table(header: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> str:
    """A Markdown table, padded to be read as it is. ``align``: "l" or "r" a column; missing ones are "l"."""
    lines = [[_cell(value) for value in row] for row in (header, *rows)]
    widths = [max(3, *(_width(line[i]) for line in lines)) for i in range(len(header))]
    right = [a == "r" for a in align.ljust(len(header), "l")]
    marks = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    padded = [[_pad(*cell) for cell in zip(line, widths, right, strict=True)] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in (padded[0], marks, *padded[1:]))


def code(text: str) -> str:
    """``text`` as inline code, whatever backquotes it holds."""
    fence = "`"
    while fence in text:
        fence += "`"
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
