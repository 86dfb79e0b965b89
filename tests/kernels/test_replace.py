"""Kernels inside a whole model, and life without them."""

import logging

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from anydraft import kernels
from anydraft.kernels import PackedLinear, library, replace_linears


def tiny_model(*, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_bf16_model_keeps_its_weights_and_its_logits(tied):
    model = tiny_model(tied=tied)
    ids = torch.randint(0, 97, (2, 9))
    weights = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        before = model(ids).logits
        assert replace_linears(model) == 2 * 7 + 1
        after = model(ids).logits
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == weights
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.02)
    assert replace_linears(model) == 0


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_quantized_model(weight_format):
    model = tiny_model()
    ids = torch.randint(0, 97, (2, 9))
    with torch.inference_mode():
        before = model(ids).logits
        assert replace_linears(model, weight=weight_format) == 15
        after = model(ids).logits
    assert not any(type(module) is nn.Linear for module in model.modules())
    similarity = nn.functional.cosine_similarity(before.float().flatten(), after.float().flatten(), dim=0)
    assert similarity > (0.99 if weight_format == "int8" else 0.95)


def test_a_layer_used_twice_is_made_once():
    linear = nn.Linear(8, 8, dtype=torch.bfloat16)
    model = nn.ModuleDict({"a": linear, "b": nn.Sequential(linear)})
    assert replace_linears(model) == 1
    assert model["a"] is model["b"][0]
    assert isinstance(model["a"], PackedLinear)


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    """``load`` forgets what it loaded, and the kernels are looked for in an empty folder."""
    library.load.cache_clear()
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    yield tmp_path
    library.load.cache_clear()


def test_not_built_is_said_once_and_torch_goes_on(fresh_library, caplog):
    model = tiny_model()
    with caplog.at_level(logging.WARNING):
        assert not kernels.available()
        assert replace_linears(model) == 0
    assert type(model.lm_head) is nn.Linear
    assert len(caplog.records) == 1
    assert "not built" in (kernels.unavailable_reason() or "")


def test_a_broken_library_is_a_reason(fresh_library):
    (fresh_library / "_linear.so").write_bytes(b"not a library")
    assert "cannot be loaded" in (kernels.unavailable_reason() or "")


def test_switched_off(fresh_library, monkeypatch):
    monkeypatch.setenv("ANYDRAFT_KERNELS", "0")
    assert "ANYDRAFT_KERNELS" in (kernels.unavailable_reason() or "")
