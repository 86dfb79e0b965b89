"""The header of a GGUF file: its metadata and where its tensors lie, checked before anything is loaded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from anydraft.errors import ModelError

_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: ``shape`` in GGUF's order (fastest dimension first), ``offset`` from the file's start."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """What a GGUF file says about itself."""

    path: Path
    metadata: dict[str, Any]
    tensors: tuple[GGUFTensor, ...]

    @property
    def architecture(self) -> str:
        """``general.architecture``, such as ``llama``."""
        return str(self.metadata["general.architecture"])


def read_gguf(path: str | Path) -> GGUFFile:
    """Read and check the header of a GGUF file.

    Raises:
        ModelError: no such file, not GGUF, an unknown version, a part of a split file, a damaged header, or
            tensors that reach beyond the end of the file.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no file {path}; give the path of a .gguf file")
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file: it does not start with 'GGUF'; download it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(path, data, size)
            except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
                raise ModelError(
                    f"{path} is damaged: its header cannot be read ({error}); download it again"
                ) from None


def _parse(path: Path, data: mmap.mmap, size: int) -> GGUFFile:
    cursor = _Cursor(data, 4)
    version = cursor.number("I")
    if version not in (2, 3):
        raise ModelError(
            f"{path} is GGUF version {version}, or of the other byte order; versions 2 and 3, little-endian, "
            "can be read: convert it again with a current llama.cpp"
        )
    num_tensors, num_entries = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.number("I"))
    entries = []
    for _ in range(num_tensors):
        name = cursor.string()
        num_dimensions = cursor.number("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise IndexError(f"tensor {name!r} has {num_dimensions} dimensions")
        shape = tuple(cursor.number("Q") for _ in range(num_dimensions))
        entries.append((name, shape, cursor.number("I"), cursor.number("Q")))
    if not isinstance(metadata.get("general.architecture"), str):
        raise ModelError(f"{path} names no architecture (general.architecture); convert it again")
    if int(metadata.get("split.count", 1)) > 1:
        raise ModelError(
            f"{path} is one of {metadata['split.count']} parts of a model; merge them with "
            "'llama-gguf-split --merge' and give the merged file"
        )
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT)) or 1
    start = -(-cursor.at // alignment) * alignment
    tensors = tuple(
        GGUFTensor(name, shape, kind, start + offset, _byte_count(path, name, kind, shape))
        for name, shape, kind, offset in entries
    )
    end = max((t.offset + t.nbytes for t in tensors), default=start)
    if end > size:
        raise ModelError(
            f"{path} is truncated: its tensors need {end:,} bytes, the file has {size:,}; download it again"
        )
    return GGUFFile(path, metadata, tensors)


def _byte_count(path: Path, name: str, ggml_type: int, shape: tuple[int, ...]) -> int:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType(ggml_type)]
    except (ValueError, KeyError):
        raise ModelError(
            f"{path}: tensor {name!r} is of unknown type {ggml_type}; update the package gguf, or use another "
            "quantization of this model"
        ) from None
    return prod(shape) // block * nbytes


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self.at = at

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.number("Q")
        end = self.at + length
        if end > len(self._data):
            raise IndexError(f"a text of {length} bytes at byte {self.at} reaches beyond the end")
        text = self._data[self.at : end].decode("utf-8")
        self.at = end
        return text

    def value(self, kind: int) -> Any:
        if kind in _FIXED:
            return self.number(_FIXED[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise IndexError(f"a value of unknown type {kind} at byte {self.at}")
        element, count = self.number("I"), self.number("Q")
        if count > len(self._data):
            raise IndexError(f"an array of {count} elements at byte {self.at}")
        if element in _FIXED:
            code = f"<{count}{_FIXED[element]}"
            values = struct.unpack_from(code, self._data, self.at)
            self.at += struct.calcsize(code)
            return list(values)
        return [self.value(element) for _ in range(count)]
