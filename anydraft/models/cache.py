"""Where AnyDraft keeps what it fetched or converted, and how two processes share it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from anydraft.errors import ModelError

logger = logging.getLogger(__name__)

CONVERSION = 1
"""Raised when the output of :mod:`anydraft.models.convert` changes: cached conversions are made again."""

_SPARE = 256 * 1024**2
"""Bytes that must stay free on the disk."""


def cache_dir() -> Path:
    """``$ANYDRAFT_CACHE``, or ``anydraft`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if given := os.environ.get("ANYDRAFT_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "anydraft"


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of ``folder`` (made if missing); waits for another process that works on ``what``.

    The lock is the kernel's: it ends with its process, however that ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a")
    except OSError as error:
        raise ModelError(
            f"the cache folder {folder} cannot be written ({_reason(folder, error)}); set ANYDRAFT_CACHE to a "
            "folder that can"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("another process prepares %s; waiting for it", what)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _reason(folder: Path, error: OSError) -> str | None:
    """Why; of a link that leads nowhere the system says only that there is something."""
    dangling = (part for part in (folder, *folder.parents) if part.is_symlink() and not part.exists())
    return next((f"{link} is a link to nothing" for link in dangling), error.strerror)


def require_space(folder: Path, nbytes: int, what: str) -> None:
    """Raise ModelError unless the disk of ``folder`` has ``nbytes`` free, and some to spare."""
    free = shutil.disk_usage(folder).free
    if free < nbytes + _SPARE:
        raise ModelError(
            f"{what} needs {gigabytes(nbytes + _SPARE)} in {folder}, where {gigabytes(free)} are free; make room, "
            "or set ANYDRAFT_CACHE to a folder on another disk"
        )


def gigabytes(nbytes: int) -> str:
    """A size for people: ``98 MB``, ``1.12 GB``."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
