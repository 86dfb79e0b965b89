"""The C forward pass against Transformers in float32, and its bits against one token at a time."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anydraft.kernels.decoder import Decoder
from anydraft.kernels.library import load

SLOTS = 64


@pytest.fixture(params=[2, 1, 0], ids=["avx512", "avx2", "portable"])
def kernels(request):
    yield load().select(request.param)
    load().select()


def model(heads: int, kv_heads: int, head_dim: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=48,
        intermediate_size=72,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def decoder(llama: LlamaForCausalLM) -> Decoder:
    made = Decoder(llama)
    shape = (1, made.kv_heads, SLOTS, made.head_dim)
    made.cache = [
        [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(made.num_layers)] for _ in range(2)
    ]
    made.bind_cache(*made.cache)
    return made


def run(made: Decoder, ids: torch.Tensor, start: int, only: torch.Tensor | None = None) -> torch.Tensor:
    """Logits of every token of ``ids``, which stand from position ``start`` on."""
    at = torch.arange(start, start + len(ids))
    return made.forward(ids, torch.zeros_like(at), at, at, at + 1, torch.arange(len(ids)), only=only)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 2, 16), (6, 2, 32), (4, 1, 48), (3, 1, 64)])
def test_forward(kernels, heads, kv_heads, head_dim):
    llama = model(heads, kv_heads, head_dim)
    made = decoder(llama)
    ids = torch.randint(0, 61, (45,))
    whole = run(made, ids, 0)
    with torch.inference_mode():
        expected = llama.float()(ids[None]).logits[0]
    # keys and values are kept in bf16, and AVX-512 rounds the activations to it as well
    assert (whole - expected).norm() < (0.025 if kernels == "avx512" else 0.015) * expected.norm()


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 2, 32), (3, 1, 48)])
def test_the_bits_of_a_token_do_not_depend_on_its_block(kernels, heads, kv_heads, head_dim):
    made = decoder(model(heads, kv_heads, head_dim))
    ids = torch.randint(0, 61, (45,))
    single = torch.cat([run(made, ids[i : i + 1], i) for i in range(45)])
    for width in (2, 3, 5, 8, 45):
        blocks = [run(made, ids[i : i + width], i) for i in range(0, 45, width)]
        assert torch.equal(torch.cat(blocks), single)


@pytest.mark.parametrize("weight", ["bf16", "int8", "int4"])
def test_a_pruned_head_gives_the_same_logits_for_its_ids(weight):
    llama = model(2, 2, 16)
    made = Decoder(llama, weight)
    shape = (1, made.kv_heads, SLOTS, made.head_dim)
    cache = [[torch.zeros(shape, dtype=torch.bfloat16) for _ in range(made.num_layers)] for _ in range(2)]
    made.bind_cache(*cache)
    ids = torch.randint(0, 61, (5,))
    subsets = [torch.tensor([0, 7, 8, 33, 60]), torch.tensor([1, 2]), torch.tensor([5])]
    whole = run(made, ids, 0)
    for only in [*subsets, *subsets]:
        assert torch.equal(run(made, ids, 0, only), whole[:, only])
    assert torch.equal(run(made, ids, 0), whole), "the whole head is there again"
