from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from gguf import quants

from anydraft.errors import ModelError, TokenizerError
from anydraft.models.convert import convert_gguf, tie_if_equal
from anydraft.models.load import load_model
from tests import tiny
from tests.models import gguf_files

IDS = torch.tensor([[5, 60, 7, 200, 11, 300, 2, 9]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path / "cache"))


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_an_unquantized_file_gives_the_very_model(tied: bool, tmp_path: Path):
    model = gguf_files.qwen2(tied=tied)
    path = gguf_files.write_qwen2(tmp_path / "tiny.gguf", model)
    loaded = load_model(path, dtype="float32")
    assert loaded.config.tie_word_embeddings == tied
    assert torch.equal(logits(loaded.model), logits(model))
    assert (loaded.vocab_size, loaded.max_context) == (model.config.vocab_size, 128)


def test_the_tokenizer_and_its_ends_come_along(tmp_path: Path):
    loaded = load_model(gguf_files.write_qwen2(tmp_path / "tiny.gguf", gguf_files.qwen2(tied=True)))
    own = tiny.byte_level()
    text = "def fib(n):\n    return 12345 größer 😀"
    assert loaded.hf_tokenizer(text).input_ids == own(text).input_ids
    assert loaded.stop_ids == {own.eos_token_id, own.convert_tokens_to_ids("<|endoftext|>")}
    assert loaded.hf_tokenizer.chat_template == tiny.CHATML
    assert set(loaded.model.generation_config.eos_token_id) == loaded.stop_ids


def test_two_quantizations_of_one_matrix_are_tied_and_the_finer_kept(tmp_path: Path):
    model = gguf_files.qwen2(tied=True)
    matrix = model.get_input_embeddings().weight.detach().numpy()
    untied = gguf_files.qwen2(tied=False)
    untied.load_state_dict(model.state_dict())
    path = gguf_files.write_qwen2(
        tmp_path / "tiny.gguf", untied, kinds={"token_embd.weight": Kind.Q4_0, "output.weight": Kind.Q8_0}
    )
    loaded = load_model(path, dtype="float32")
    head = loaded.model.get_output_embeddings().weight
    assert loaded.model.get_input_embeddings().weight is head
    fine = quants.dequantize(quants.quantize(matrix, Kind.Q8_0), Kind.Q8_0)
    assert torch.equal(head, torch.from_numpy(fine).bfloat16().float())
    assert sum(p.numel() for p in loaded.model.parameters()) == sum(p.numel() for p in model.parameters())


def test_different_matrices_stay_untied():
    model = gguf_files.qwen2(tied=False)
    assert not tie_if_equal(model)
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight
    assert not tie_if_equal(gguf_files.qwen2(tied=True)), "tied already"


def test_a_file_is_converted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = gguf_files.write_qwen2(tmp_path / "tiny.gguf", gguf_files.qwen2(tied=True))
    load_model(path)
    assert "converting" in caplog.text
    caplog.clear()
    load_model(path)
    assert "converting" not in caplog.text
    gguf_files.write_qwen2(path, gguf_files.qwen2(tied=True, seed=4))
    load_model(path)
    assert "converting" in caplog.text, "another file under the same name"


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path: Path):
    path = gguf_files.write_qwen2(
        tmp_path / "tiny.gguf", gguf_files.qwen2(tied=True), metadata={"tokenizer.ggml.pre": "no-such"}
    )
    with pytest.raises(TokenizerError, match="'no-such'"):
        convert_gguf(path, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_an_architecture_that_is_not_known(tmp_path: Path):
    path = gguf_files.write_qwen2(tmp_path / "tiny.gguf", gguf_files.qwen2(tied=True), architecture="plamo3")
    with pytest.raises(ModelError, match=r"Transformers cannot read .*plamo3") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


def test_a_file_of_a_vocabulary_only(tmp_path: Path):
    model = gguf_files.qwen2(tied=True)
    model.state_dict = dict
    with pytest.raises(ModelError, match="no tensors"):
        load_model(gguf_files.write_qwen2(tmp_path / "tiny.gguf", model))


def llama3_divisors(factor: float, head_dim: int = 16, theta: float = 10000.0) -> np.ndarray:
    """What a converter writes for Llama 3.1: long waves divided by ``factor``, short ones not, a ramp between."""
    out = []
    for i in range(0, head_dim, 2):
        wave = 2 * np.pi * theta ** (i / head_dim)
        smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
        if wave < 8192 / 4:
            out.append(1.0)
        elif wave > 8192:
            out.append(factor)
        else:
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def test_llama3s_rotary_scaling_is_kept(tmp_path: Path):
    model = gguf_files.qwen2(tied=True)
    path = gguf_files.write_qwen2(
        tmp_path / "tiny.gguf", model, extra={"rope_freqs.weight": llama3_divisors(32.0)}
    )
    rope = load_model(path).config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == (
        "llama3",
        32.0,
        8192,
    )
    assert rope["rope_theta"] == 10000.0


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 2.0, "original_context_length": 64},
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        ),
        ({"type": "none"}, {"rope_type": "default"}),
    ],
)
def test_stated_rotary_scaling_is_kept(metadata: dict[str, Any], expected: dict[str, Any], tmp_path: Path):
    keys = {f"qwen2.rope.scaling.{k}": v for k, v in metadata.items()}
    path = gguf_files.write_qwen2(tmp_path / "tiny.gguf", gguf_files.qwen2(tied=True), metadata=keys)
    assert expected.items() <= load_model(path).config.rope_parameters.items()


@pytest.mark.parametrize(
    ("metadata", "extra"),
    [
        ({}, {"rope_freqs.weight": np.full(8, 3.0, dtype=np.float32)}),
        ({}, {"rope_factors_long.weight": np.ones(8, dtype=np.float32)}),
        ({"qwen2.rope.scaling.type": "longrope"}, {}),
    ],
)
def test_rotary_scaling_that_would_be_lost_is_refused(
    metadata: dict[str, Any], extra: dict[str, Any], tmp_path: Path
):
    path = gguf_files.write_qwen2(
        tmp_path / "tiny.gguf", gguf_files.qwen2(tied=True), metadata=metadata, extra=extra
    )
    with pytest.raises(ModelError, match="rotary embeddings"):
        load_model(path)


def test_half_precision_files_keep_their_precision(tmp_path: Path):
    model = gguf_files.qwen2(tied=True).to(torch.float16)
    path = tmp_path / "tiny.gguf"
    gguf_files.write_qwen2(
        path,
        model,
        kinds={gguf_files.gguf_name(n): Kind.F16 for n, t in model.state_dict().items() if t.dim() == 2},
    )
    folder = tmp_path / "out"
    convert_gguf(path, folder)
    stored = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert stored.dtype == torch.float16
    for (name, a), (_, b) in zip(model.named_parameters(), stored.named_parameters(), strict=True):
        assert torch.equal(a, b), name
