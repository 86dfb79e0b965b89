"""From how a user names a model to the folder that holds it."""

from __future__ import annotations

import hashlib
import json
import logging
from math import prod
from pathlib import Path

from anydraft.errors import ModelError, UsageError
from anydraft.models.cache import CONVERSION, cache_dir, locked, require_space
from anydraft.models.download import is_cached, pull
from anydraft.models.gguf_file import read_gguf
from anydraft.models.packaged import PACKAGED

logger = logging.getLogger(__name__)

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "spiece.model")


def locate(source: str | Path) -> Path | str:
    """The local folder that ``source`` names, or a hub id.

    Raises:
        UsageError: it is empty.
        ModelError: there is nothing there, or a packaged model or GGUF file cannot be fetched or converted.
    """
    if not str(source).strip():  # as a path it would be the current folder
        raise UsageError(f"a model is named by a folder, hub id, GGUF file or packaged name, not {source!r}")
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf" or path.is_file():
        return _converted(path)
    name = str(source)
    if name in PACKAGED:
        if not is_cached(PACKAGED[name]):
            logger.warning("%s is not in the cache yet; fetching it (once)", name)
        return pull(PACKAGED[name])
    # A hub id is "name" or "owner/name"; whatever else looks like a path is meant as one.
    if path.is_absolute() or name.startswith(("./", "../", "~")) or name.count("/") > 1 or "\\" in name:
        raise ModelError(
            f"there is no model at {name}; give an existing folder or .gguf file, a hub id such as "
            f"Qwen/Qwen2.5-0.5B-Instruct, or a packaged model ({', '.join(PACKAGED)})"
        )
    return name


def _converted(gguf: Path) -> Path:
    """The Transformers folder of a user's GGUF file, converted into the cache once."""
    header = read_gguf(gguf)
    status = gguf.stat()
    identity = f"{gguf.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{CONVERSION}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder = cache_dir() / "gguf" / f"{gguf.stem}-{key}" / "transformers"
    with locked(folder.parent, gguf.name):
        if not (folder / "config.json").is_file():
            from anydraft.models.convert import convert_gguf  # loads torch

            elements = sum(prod(t.shape) for t in header.tensors)
            require_space(folder.parent, 2 * elements, f"converting {gguf}")
            logger.warning("converting %s (once); the result is kept in %s", gguf, folder)
            convert_gguf(gguf, folder)
    return folder


def check_config(folder: Path, name: str) -> None:
    """Refuse a folder without a readable config.json."""
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{name} is not a model folder: it has no config.json; give the folder that has it")
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{config} is damaged ({error}); download the model again") from None


def check_folder(folder: Path, name: str, *, weights: bool = True) -> None:
    """Refuse a folder that lacks a tokenizer or (if asked) weights, before Transformers gets to it."""
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise ModelError(
            f"{name} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy the tokenizer files of "
            "the original model into it, or pass (model, tokenizer)"
        )
    if weights and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ModelError(f"{name} has no weights (*.safetensors); download the model again")
