from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers

from anydraft.errors import ModelError, UsageError
from anydraft.models.describe import count_parameters, describe_model
from anydraft.models.load import load_model
from tests import tiny


def save(pair: tuple[Any, Any], path: Path) -> Path:
    model, tokenizer = pair
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("make", [tiny.llama, tiny.gemma3])
def test_a_folder_is_described_as_it_loads(make: Any, tmp_path: Path):
    folder = save(make(padded_rows=7), tmp_path)
    info, loaded = describe_model(folder), load_model(folder, dtype="float32")
    assert info.name == loaded.name
    assert info.architecture == loaded.config.model_type
    assert (info.stop_ids, info.max_context, info.vocab_size) == (
        loaded.stop_ids,
        loaded.max_context,
        loaded.vocab_size,
    )
    assert info.num_parameters == sum(p.numel() for p in loaded.model.parameters())
    assert info.hf_tokenizer("a b").input_ids == loaded.hf_tokenizer("a b").input_ids


def test_weights_are_not_needed(tmp_path: Path):
    folder = save(tiny.llama(), tmp_path)
    whole = describe_model(folder)
    (folder / "model.safetensors").unlink()
    assert describe_model(folder).num_parameters == whole.num_parameters


def test_stop_ids_come_from_the_generation_config_too(tmp_path: Path):
    folder = save(tiny.llama(), tmp_path)
    ends = transformers.GenerationConfig(eos_token_id=[2, 5])
    ends.save_pretrained(folder)
    assert {2, 5} <= describe_model(folder).stop_ids
    (folder / "generation_config.json").unlink()
    assert 5 not in describe_model(folder).stop_ids


@pytest.mark.parametrize("tied", [False, True])
def test_tied_parameters_count_once(tied: bool):
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    body = 4 * 8 * 8 + 3 * 8 * 16 + 3 * 8
    assert count_parameters(config) == body + (1 if tied else 2) * 50 * 8


def test_an_architecture_that_cannot_be_built_has_no_count(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="anydraft")
    assert count_parameters(transformers.T5Config()) is None
    assert "t5" in caplog.text


def write_gguf(path: Path, architecture: str, *, embedding: bool = True) -> Path:
    """A file of one layer's worth of nothing: metadata, a tokenizer of four tokens, an embedding of 6 rows."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(77)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", "<|endoftext|>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    if embedding:
        writer.add_tensor("token_embd.weight", np.zeros((6, 4), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_described_by_its_header(tmp_path: Path):
    info = describe_model(write_gguf(tmp_path / "m.gguf", "llama"))
    assert (info.architecture, info.max_context, info.vocab_size) == ("llama", 77, 6)
    assert info.stop_ids == {3}
    assert info.num_parameters == 28
    assert info.hf_tokenizer("abba", add_special_tokens=False).input_ids == [2, 1, 0]


@pytest.mark.parametrize(
    ("architecture", "reason"), [("mamba", "recurrent"), ("bert", "causal"), ("t5", "encoder-decoder")]
)
def test_a_gguf_file_of_another_kind_is_refused(tmp_path: Path, architecture: str, reason: str):
    with pytest.raises(ModelError, match=reason):
        describe_model(write_gguf(tmp_path / "m.gguf", architecture))


@pytest.mark.parametrize("source", ["", " "])
def test_an_empty_name_is_not_the_current_folder(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="named by a folder, hub id, GGUF file or packaged name, not '"):
        describe_model(source)


def test_a_gguf_file_without_an_embedding_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match="token_embd"):
        describe_model(write_gguf(tmp_path / "m.gguf", "llama", embedding=False))


def test_a_config_without_a_vocabulary_size_is_refused(tmp_path: Path):
    folder = save(tiny.llama(), tmp_path)
    config = (folder / "config.json").read_text()
    size = len(tiny.byte_level())
    (folder / "config.json").write_text(config.replace(f'"vocab_size": {size}', '"vocab_size": 0'))
    with pytest.raises(ModelError, match="vocab_size"):
        describe_model(folder)
