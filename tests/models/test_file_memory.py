"""What a loaded model keeps of its file: nothing, once a runner has its weights."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from anydraft.kernels import available
from anydraft.models.load import load_model
from anydraft.models.select import Quantization, make_runner
from tests import tiny

pytestmark = pytest.mark.skipif(not available(), reason="the C kernels are not there")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_runner_lets_go_of_the_file(tied: bool, quantization: Quantization, tmp_path: Path) -> None:
    tokenizer = tiny.byte_level()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="bfloat16")
    given = [[1, 2, 3, 4, 5]]
    expected = make_runner(replace(loaded, borrowed=True), quantization=quantization).forward(0, given, [0])
    runner = make_runner(loaded, quantization=quantization)
    assert runner.on_kernels
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert torch.equal(runner.forward(0, given, [0]), expected)
