"""Short texts of many kinds, against which vocabularies are weighed."""

from __future__ import annotations

import logging
from importlib.resources import files

from anydraft.errors import UsageError
from anydraft.vocab.text import checked

logger = logging.getLogger(__name__)

KINDS: dict[str, str] = {
    "python": "Python code",
    "json_markdown": "JSON and Markdown",
    "english": "English",
    "french": "French",
    "german": "German",
    "russian": "Russian",
    "chinese": "Chinese",
    "japanese": "Japanese",
    "arabic": "Arabic",
    "hindi": "Hindi",
    "emoji_maths": "emoji and maths",
}
"""File of the sample -> what it is called in reports."""

_MOST_CHARACTERS = 50_000
"""Of the user's own text; more would change the figures little and take long."""


def sample_texts() -> dict[str, str]:
    """Kind of text -> 1 to 2 kB of it."""
    folder = files("anydraft.bench") / "samples"
    return {kind: (folder / f"{name}.txt").read_text(encoding="utf-8") for name, kind in KINDS.items()}


def user_text(path: str) -> str:
    """The text of the user's own file, its first 50,000 characters.

    Raises:
        UsageError: no such file, no UTF-8 text, or nothing in it.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = checked(file.read())
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give a text file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no UTF-8 text (byte {error.start}); convert it to UTF-8") from None
    if not text.strip():
        raise UsageError(f"{path} holds no text; give some of the text that you generate")
    if len(text) > _MOST_CHARACTERS:
        logger.warning("%s has %d characters; the first %d are weighed", path, len(text), _MOST_CHARACTERS)
    return text[:_MOST_CHARACTERS]
