from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anydraft.errors import ModelError
from anydraft.models.gguf_file import read_gguf
from tests.models import gguf_files


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = {"blk.0.ffn_up.weight": Kind.Q8_0, "token_embd.weight": Kind.Q4_0}
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return gguf_files.write_qwen2(path, gguf_files.qwen2(tied=True), kinds=kinds)


def test_it_reads_what_the_reference_reader_reads(path: Path):
    ours, theirs = read_gguf(path), GGUFReader(path)
    assert ours.architecture == "qwen2"
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key
    assert [(t.name, list(t.shape), t.ggml_type, t.offset, t.nbytes) for t in ours.tensors] == [
        (t.name, t.shape.tolist(), t.tensor_type, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]


def damaged(path: Path, tmp_path: Path, change: bytes, at: int) -> Path:
    data = bytearray(path.read_bytes())
    data[at : at + len(change)] = change
    other = tmp_path / "damaged.gguf"
    other.write_bytes(data)
    return other


def test_a_missing_file(tmp_path: Path):
    with pytest.raises(ModelError, match="there is no file"):
        read_gguf(tmp_path / "no.gguf")


def test_no_gguf_at_all(path: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_gguf(damaged(path, tmp_path, b"GGML", 0))


def test_an_empty_file(tmp_path: Path):
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_gguf(tmp_path / "empty.gguf")


@pytest.mark.parametrize("version", [b"\x01\0\0\0", b"\0\0\0\x03"])
def test_another_version_or_byte_order(path: Path, tmp_path: Path, version: bytes):
    with pytest.raises(ModelError, match="GGUF version"):
        read_gguf(damaged(path, tmp_path, version, 4))


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_file_says_how_much_is_missing(path: Path, tmp_path: Path, kept: float):
    data = path.read_bytes()
    short = tmp_path / "short.gguf"
    end = max(t.offset + t.nbytes for t in read_gguf(path).tensors)
    short.write_bytes(data[: int(end * kept)])
    with pytest.raises(ModelError, match=r"is truncated: its tensors need .* bytes, the file has"):
        read_gguf(short)


@pytest.mark.parametrize("kept", [10, 40, 2000])
def test_a_truncated_header(path: Path, tmp_path: Path, kept: int):
    short = tmp_path / "short.gguf"
    short.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="is damaged: its header cannot be read"):
        read_gguf(short)


def test_one_of_several_parts(tmp_path: Path):
    path = gguf_files.write_qwen2(
        tmp_path / "m-00001-of-00002.gguf", gguf_files.qwen2(tied=True), metadata={"split.count": 2}
    )
    with pytest.raises(ModelError, match="llama-gguf-split --merge"):
        read_gguf(path)


def test_an_unknown_tensor_type(path: Path, tmp_path: Path):
    data = path.read_bytes()
    name = b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 16  # dimensions: a count and two lengths
    assert data[at] == Kind.Q8_0
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_up\.weight' is of unknown type 250"):
        read_gguf(damaged(path, tmp_path, b"\xfa", at))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(4, 6000), change=st.binary(min_size=1, max_size=8))
def test_no_damage_of_the_header_gives_anything_but_a_model_error(
    path: Path, tmp_path: Path, at: int, change: bytes
):
    with contextlib.suppress(ModelError):
        read_gguf(damaged(path, tmp_path, change, at))
