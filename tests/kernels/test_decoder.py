"""The C forward pass against Transformers' own, on tiny models of every architecture that it knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from anydraft.kernels import available
from anydraft.kernels.decoder import unsupported
from anydraft.models.load import LoadedModel, load_model
from anydraft.models.native import NativeRunner
from anydraft.models.select import make_runner
from tests import tiny

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
GEMMA: dict[str, Any] = {
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 16,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "llama3": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, rope_parameters={**SCALED, "original_max_position_embeddings": 64})
    ),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=8)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**SIZES, **GEMMA)),
}

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture(scope="module")
def kernels() -> None:
    assert available(), "the C kernels were not built; install a C compiler and the package again"


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    made = MODELS[request.param]().to(torch.bfloat16).eval()
    for name, parameter in made.named_parameters():
        if "norm" in name or "bias" in name:  # their defaults, 1 and 0, would hide a mistake
            torch.nn.init.normal_(parameter, mean=0.0 if "bias" in name else 0.5, std=0.2)
    return made


def ids_of(seed: int, n: int) -> list[int]:
    return torch.randint(1, 96, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def exact(model: Any, ids: list[int]) -> torch.Tensor:
    """The logits of the same weights computed in float64."""
    import copy

    return copy.deepcopy(model).double()(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def test_logits_are_those_of_the_weights(model: Any) -> None:
    ids = ids_of(1, 40)
    ours = NativeRunner(model, 128).forward(0, [ids], [0])[0]
    want = exact(model, ids)
    # Keys and values are kept in bf16, everything else in float32.
    assert (ours - want).abs().max() < 0.02 * want.abs().max()


def test_bits_do_not_depend_on_block_batch_or_roll_back(model: Any) -> None:
    ids = ids_of(2, 30)
    runner = NativeRunner(model, 128)
    whole = runner.forward(0, [ids], [0])[0]
    one = torch.cat([runner.forward(1, [[t]], [i])[0] for i, t in enumerate(ids)])
    assert torch.equal(whole, one)
    runner.prefill(2, ids[:10], 0)
    runner.forward(2, [ids_of(3, 7)], [10])
    ragged = runner.forward(0, [ids_of(4, 3), [], ids[10:]], [5, 30, 10])
    assert torch.equal(ragged[2, :20], whole[10:])
    last = runner.forward(0, [ids_of(4, 3), [], ids[10:]], [5, 30, 10], last_only=True)
    assert torch.equal(last[2, 0], whole[-1])


def test_a_tree_sees_its_own_branch_only(model: Any) -> None:
    context = ids_of(5, 21)
    runner = NativeRunner(model, 128)
    runner.prefill(0, context, 0)
    ids, depths, parents = [5, 6, 7, 8, 9], [0, 0, 1, 1, 2], [-1, -1, 0, 1, 2]
    first = runner.forward_tree(0, ids[:2], depths[:2], parents[:2], len(context), 0)
    rest = runner.forward_tree(0, ids, depths, parents, len(context), 2)
    for got, branch in zip([*first, *rest], [[5], [6], [5, 7], [6, 8], [5, 7, 9]], strict=True):
        runner.prefill(1, context, 0)
        assert torch.equal(got, runner.forward(1, [branch], [len(context)])[0, -1])


def test_rows_grow_and_move() -> None:
    torch.manual_seed(0)
    model = MODELS["qwen2"]().to(torch.bfloat16).eval()
    ids = ids_of(6, 200)
    runner = NativeRunner(model, 256)
    runner.prefill(0, ids[:-1], 0)
    want = runner.forward(0, [[ids[-1]]], [199])[0]
    runner.prefill(5, ids[:90], 0)
    runner.cache.move_row(0, 3, 199)
    assert torch.equal(runner.forward(3, [[ids[-1]]], [199])[0], want)
    runner.forward(0, [ids_of(7, 300)], [0])
    assert torch.equal(runner.forward(3, [[ids[-1]]], [199])[0], want)


def test_what_has_no_c_form_says_why() -> None:
    assert "float" in (unsupported(MODELS["llama"]()) or "bfloat16")
    assert "gpt2" in (
        unsupported(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1)).bfloat16()) or ""
    )
    config = transformers.LlamaConfig(**{**SIZES, "hidden_act": "relu"})
    assert "relu" in (unsupported(transformers.LlamaForCausalLM(config).bfloat16()) or "")


def _loaded(model: Any) -> LoadedModel:
    return load_model((model, tiny.byte_level()))


@pytest.mark.parametrize(("quantization", "similarity"), [("int8", 0.95), ("auto", 0.95), ("int4", 0.7)])
def test_quantized_drafts_are_close_and_leave_a_borrowed_model_alone(
    quantization: Any, similarity: float
) -> None:
    torch.manual_seed(0)
    model = MODELS["llama"]().to(torch.bfloat16).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    runner = make_runner(_loaded(model), quantization=quantization)
    assert isinstance(runner, NativeRunner)
    ids = ids_of(8, 20)
    want = exact(model, ids)
    ours = runner.forward(0, [ids], [0])[0]
    assert torch.nn.functional.cosine_similarity(ours, want, dim=-1).mean() > similarity
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
