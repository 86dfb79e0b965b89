"""Prompts to measure and to verify with: those that the package carries, or a file of the user's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from anydraft.errors import UsageError

CATEGORIES = ("code", "chat", "maths", "summary")


@dataclass(frozen=True)
class BenchPrompt:
    """A raw ``prompt``, or the ``messages`` of a conversation."""

    id: str
    category: str
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None

    @property
    def text(self) -> str:
        """As raw text, for models without a chat template."""
        return (
            self.prompt if self.prompt is not None else "\n\n".join(m["content"] for m in self.messages or ())
        )


def packaged_prompts(count: int, categories: Sequence[str] = CATEGORIES) -> list[BenchPrompt]:
    """``count`` prompts that come with the package, its categories in turn.

    Raises:
        UsageError: an unknown category, or more prompts than there are.
    """
    unknown = [c for c in categories if c not in CATEGORIES]
    if unknown:
        raise UsageError(f"category {unknown[0]!r} is unknown; choose of {', '.join(CATEGORIES)}")
    folder = files("anydraft.bench") / "prompts"
    lists = [_parse((folder / f"{c}.jsonl").read_text(encoding="utf-8"), c) for c in categories]
    mixed = [p for p in chain.from_iterable(zip_longest(*lists)) if p is not None]
    if not 1 <= count <= len(mixed):
        raise UsageError(
            f"{count} prompts were asked for; the package has {len(mixed)} of {', '.join(categories)}"
        )
    return mixed[:count]


def file_prompts(path: str | Path) -> list[BenchPrompt]:
    """Prompts of a file: JSON lines with ``prompt`` or ``messages``, or plain text, a prompt a line.

    Raises:
        UsageError: no such file, none in it, or a line that is neither.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prompts cannot be read from {path}: {error}") from None
    prompts = _parse(text, Path(path).stem)
    if not prompts:
        raise UsageError(
            f"{path} has no prompts; give a prompt a line, or JSON lines with 'prompt' or 'messages'"
        )
    return prompts


def _parse(text: str, category: str) -> list[BenchPrompt]:
    return [
        _prompt(line, f"{category}/{number}", category)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _prompt(line: str, default_id: str, category: str) -> BenchPrompt:
    if not line.lstrip().startswith("{"):
        return BenchPrompt(default_id, category, prompt=line)
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UsageError(f"prompt {default_id} is no JSON: {error}") from None
    prompt, messages = record.get("prompt"), record.get("messages")
    if isinstance(prompt, str) == isinstance(messages, list):
        raise UsageError(f"prompt {default_id} must have either 'prompt' (text) or 'messages' (a list)")
    return BenchPrompt(
        str(record.get("id", default_id)),
        str(record.get("category", category)),
        prompt=prompt,
        messages=tuple(messages) if messages is not None else None,
    )
