"""Rows at their own positions: whatever was fed, rolled back or padded, logits are those of a plain forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from anydraft.errors import ModelError
from anydraft.models.runner import ModelRunner

VOCAB = 64
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def qwen2() -> Any:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL))


def mistral_sliding() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, sliding_window=8))


def gemma3_sliding() -> Any:
    config = transformers.Gemma3TextConfig(
        **SMALL,
        head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=8,
    )
    return transformers.Gemma3ForCausalLM(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return transformers.GPT2LMHeadModel(config)


def phi3() -> Any:
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**SMALL, pad_token_id=0))


@pytest.fixture(params=[llama, qwen2, mistral_sliding, gemma3_sliding, gpt2, phi3], ids=lambda f: f.__name__)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return request.param().eval()


def ids_of(seed: int, n: int) -> list[int]:
    return torch.randint(1, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def plain(model: Any, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=2e-5, rtol=1e-4)


def test_ragged_rows_and_rollback(model: Any) -> None:
    """Three rows of different lengths; in each step another number of fed tokens is rolled back."""
    runner = ModelRunner(model, 64)
    rows = [ids_of(i, n) for i, n in enumerate((3, 17, 9))]
    for i, row in enumerate(rows):
        runner.prefill(i, row[:-1], 0)
    for step in range(4):
        proposals = [ids_of(100 + 10 * step + i, n) for i, n in enumerate((2, 0, 4))]
        feeds = [[row[-1], *proposal] for row, proposal in zip(rows, proposals, strict=True)]
        logits = runner.forward(0, feeds, [len(row) - 1 for row in rows])
        for i, (row, proposal) in enumerate(zip(rows, proposals, strict=True)):
            want = plain(model, row + proposal)[len(row) - 1 :]
            assert close(logits[i, : len(proposal) + 1], want)
            row.extend(proposal[: step % 3])
            row.append(1 + step)


def test_a_row_moves_with_its_contents(model: Any) -> None:
    runner = ModelRunner(model, 64)
    rows = [ids_of(i, n) for i, n in enumerate((5, 12))]
    for i, row in enumerate(rows):
        runner.prefill(i, row[:-1], 0)
    runner.cache.move_row(1, 0, len(rows[1]) - 1)
    logits = runner.forward(0, [[rows[1][-1]]], [len(rows[1]) - 1])
    assert close(logits[0, -1], plain(model, rows[1])[-1])


def test_middle_rows_can_be_fed_alone(model: Any) -> None:
    """Empty rows inside the range of a forward keep their contents."""
    runner = ModelRunner(model, 64)
    rows = [ids_of(i, 6 + i) for i in range(3)]
    for i, row in enumerate(rows):
        runner.prefill(i, row[:-1], 0)
    starts = [len(row) - 1 for row in rows]
    runner.forward(0, [[rows[0][-1]], [], [rows[2][-1]]], starts)
    logits = runner.forward(1, [[rows[1][-1]]], [starts[1]])
    assert close(logits[0, -1], plain(model, rows[1])[-1])


def test_a_tree_sees_its_own_branch_only(model: Any) -> None:
    context = ids_of(1, 11)
    runner = ModelRunner(model, 64)
    runner.prefill(0, context, 0)
    ids, depths, parents = [5, 6, 7, 8, 9], [0, 0, 1, 1, 2], [-1, -1, 0, 1, 2]
    first = runner.forward_tree(0, ids[:2], depths[:2], parents[:2], len(context), 0)
    rest = runner.forward_tree(0, ids, depths, parents, len(context), 2)
    branches = [[5], [6], [5, 7], [6, 8], [5, 7, 9]]
    for got, branch in zip([*first, *rest], branches, strict=True):
        assert close(got, plain(model, context + branch)[-1])


def test_slots_grow_past_the_first_allocation() -> None:
    torch.manual_seed(0)
    model = llama().eval()
    runner = ModelRunner(model, 512)
    ids = ids_of(3, 400)
    runner.prefill(0, ids[:250], 0)
    runner.prefill(0, ids[250:-1], 250)
    assert close(runner.forward(0, [[ids[-1]]], [399])[0, -1], plain(model, ids)[-1])
    assert runner.cache.num_bytes > 0


def test_a_model_with_recurrent_state_is_refused() -> None:
    config = transformers.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelError, match=r"rolled back"):
        ModelRunner(transformers.MambaForCausalLM(config).eval(), 64)
