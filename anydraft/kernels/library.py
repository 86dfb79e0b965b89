"""The compiled kernels: found beside this file, loaded by ctypes."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import logging
import os
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

FORMATS = {"bf16": 0, "int8": 1, "int4": 2}


class WeightStruct(ctypes.Structure):
    """``linear_weight`` of linear.h."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("k_padded", ctypes.c_int64),
        ("format", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("minimum", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Library:
    """The loaded kernels, or why there are none."""

    handle: ctypes.CDLL | None
    reason: str | None
    simd: str = ""

    def select(self, level: int = 2) -> str:
        """Use this processor's best kernels up to a level (0 portable, 1 AVX2, 2 AVX-512); returns their name."""
        assert self.handle is not None
        return str(self.handle.anydraft_select(level).decode())


@functools.cache
def load() -> Library:
    """Load the kernels once; log once if there are none."""
    folder = Path(__file__).parent
    paths = [folder / f"_linear{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    path = next((p for p in paths if p.exists()), None)
    if os.environ.get("ANYDRAFT_KERNELS", "1") == "0":
        return _without("switched off by ANYDRAFT_KERNELS=0")
    if path is None:
        return _without("they were not built (no C compiler when anydraft was installed)")
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        return _without(f"{path.name} cannot be loaded: {error}")
    handle.anydraft_select.argtypes = [ctypes.c_int]
    handle.anydraft_select.restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    handle.anydraft_linear.argtypes = [pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
    handle.anydraft_linear.restype = ctypes.c_int
    handle.anydraft_decoder_forward.argtypes = [pointer, pointer, pointer, ctypes.c_int]
    handle.anydraft_decoder_forward.restype = ctypes.c_int
    return Library(handle, None, str(handle.anydraft_select(2).decode()))


def _without(reason: str) -> Library:
    logger.warning("C kernels not used, torch's own operators are: %s", reason)
    return Library(None, reason)


def available() -> bool:
    """Whether the C kernels can be used on this machine."""
    return load().handle is not None


def unavailable_reason() -> str | None:
    """Why :func:`available` is False, one line; None if it is True."""
    return load().reason
