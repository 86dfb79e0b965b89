"""Requests wait until their keys and values fit, whichever runner holds them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from anydraft.cli.main import app
from anydraft.engine import Engine
from anydraft.engine.admission import BLOCK, in_words, parse_memory
from anydraft.errors import UsageError
from anydraft.kernels import available
from anydraft.models.native import NativeRunner
from anydraft.models.runner import ModelRunner
from anydraft.rules.params import SamplingParams
from tests import tiny

DTYPES = ["float32", "bfloat16"]
PROMPTS = ["def fib(n):\n    if n", "The quick brown fox", "größer 😀", "1111111111", "The dog sleeps; the"]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


@cache
def target(dtype: str) -> tuple[Any, Any]:
    """In bfloat16 it runs on the C forward pass, where there is one."""
    torch.manual_seed(0)
    tokenizer = tiny.byte_level()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).to(getattr(torch, dtype)).eval(), tokenizer


def slot_bytes(dtype: str) -> int:
    """Two layers, keys and values, two heads of 16."""
    return 2 * 2 * 2 * 16 * getattr(torch, dtype).itemsize


def run(engine: Engine, order: list[str]) -> tuple[dict[str, Any], int, int]:
    """(results, most rows at once, most bytes allocated)."""
    results: dict[str, Any] = {}
    rows = size = 0
    while len(results) < len(order):
        for delta in engine.core.step():
            if delta.result is not None:
                results[delta.request_id] = delta.result
        rows = max(rows, engine.core.num_running)
        size = max(size, engine.pair.runner.cache.num_bytes)
    return results, rows, size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["none", "slem"])
def test_what_is_allocated_stays_within_the_limit_and_nothing_else_changes(dtype: str, method: str) -> None:
    draft = tiny.gemma3() if method == "slem" else None
    free = Engine(target(dtype), draft, method=method)
    if dtype == "bfloat16" and available():
        assert isinstance(free.pair.runner, NativeRunner)
    else:
        assert isinstance(free.pair.runner, ModelRunner)
    expected = [r.token_ids for r in free.generate(PROMPTS, GREEDY)]
    longest = max(len(free.encode(p).target_ids) for p in PROMPTS) + 30
    limit = 2 * slot_bytes(dtype) * (longest + BLOCK)
    engine = Engine(target(dtype), draft, method=method, kv_memory=limit)
    order = [engine.add_request(p, GREEDY) for p in PROMPTS]
    results, rows, size = run(engine, order)
    assert [results[i].token_ids for i in order] == expected
    assert rows == 2
    assert size <= limit
    assert free.pair.runner.cache.num_bytes > limit


@pytest.mark.parametrize("dtype", DTYPES)
def test_after_one_long_request_several_short_ones_run_together(dtype: str) -> None:
    engine = Engine(target(dtype), method="none", kv_memory=slot_bytes(dtype) * 256)
    engine.generate(["a"], SamplingParams(temperature=0, max_tokens=190, ignore_eos=True))
    short = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    order = [engine.add_request([5], short) for _ in range(5)]
    _, rows, size = run(engine, order)
    assert rows == 256 // (1 + 10 + BLOCK)
    assert size <= slot_bytes(dtype) * 256


def test_what_could_never_fit_is_refused_in_one_line() -> None:
    engine = Engine(target("float32"), method="none", kv_memory=slot_bytes("float32") * (100 + BLOCK))
    with pytest.raises(UsageError, match=r"101 tokens .* need .* KiB .* at most 100\)") as caught:
        engine.generate([[5, 6]], SamplingParams(max_tokens=99))
    assert "\n" not in str(caught.value)
    assert (
        engine.generate([[5, 6]], SamplingParams(max_tokens=98, ignore_eos=True))[0].finish_reason == "length"
    )


def test_an_open_length_ends_where_the_memory_does() -> None:
    engine = Engine(target("float32"), method="none", kv_memory=slot_bytes("float32") * (40 + BLOCK))
    params = SamplingParams(max_tokens=None, ignore_eos=True, seed=0)
    assert len(engine.generate([[5] * 10], params)[0].token_ids) == 30


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_prompts_are_read_once_and_their_keys_and_values_have_the_same_bits(dtype: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    ids = [7 + i % 90 for i in range(40)]

    def start(prompts: list[list[int]]) -> tuple[Engine, int]:
        engine = Engine(target(dtype), method="none")
        read = 0
        prefill = engine.pair.runner.prefill

        def counted(row: int, ids: Any, start: int) -> None:
            nonlocal read
            read += len(ids)
            prefill(row, ids, start)

        engine.pair.runner.prefill = counted
        for prompt in prompts:
            engine.add_request(prompt, params)
        engine.core.step()
        return engine, read

    def rows(engine: Engine) -> list[torch.Tensor]:
        held: Any = engine.pair.runner.cache
        keys = held.keys if hasattr(held, "keys") else [layer.keys for layer in held.layers]
        values = held.values if hasattr(held, "values") else [layer.values for layer in held.layers]
        return [t[:3, :, : len(ids) - 1] for t in (*keys, *values)]

    copied, read = start([ids, ids[:9], ids])
    assert read == 39 + 8
    plain, read_plain = start([ids, ids[:9], [*ids[:-1], 3]])  # all but the last token are the same
    assert read_plain == 2 * 39 + 8
    for mine, theirs in zip(rows(copied), rows(plain), strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[2], theirs[2])
        assert mine[2].abs().sum() > 0


@pytest.mark.parametrize(
    ("given", "size"),
    [(None, None), (5000, 5000), ("5000", 5000), ("4GiB", 4 * 2**30), ("1.5 MB", 1_500_000), ("2KiB", 2048)],
)
def test_sizes(given: Any, size: int | None) -> None:
    assert parse_memory(given) == size


@pytest.mark.parametrize("given", ["", "GiB", "4 gigs", "-1GiB", 0, -5, True, "0.0001B"])
def test_wrong_sizes_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="kv_memory"):
        Engine("no-model", kv_memory=given)


def test_sizes_in_words() -> None:
    assert [in_words(n) for n in (20 * 1024, 3 * 2**20, 3 * 2**29)] == ["20 KiB", "3.00 MiB", "1.50 GiB"]


def test_the_server_takes_a_size() -> None:
    result = CliRunner().invoke(app, ["serve", "no-model", "--kv-memory", "much"])
    assert result.exit_code == 2
    assert "kv_memory='much'" in result.stderr


@pytest.mark.parametrize(("dtype", "counted"), [("bfloat16", 5), ("float32", 8)])
def test_a_forward_counts_the_tokens_that_it_computes(dtype: str, counted: int) -> None:
    """One of two rows proposes three tokens: the C forward pass runs 1 + 4 tokens, a padded one 4 + 4."""
    engine = Engine(target(dtype), method="lookup", num_speculative_tokens=3)
    if dtype == "bfloat16" and not engine.pair.runner.on_kernels:
        pytest.skip("no C kernels here")
    engine.add_request([5, 6, 7, 8, 9, 5, 6, 7], GREEDY)
    engine.add_request([11, 12, 13], GREEDY)
    engine.core.step()
    assert list(engine.pair.costs.target) == [counted]
