"""A draft inside vLLM: its blocks, slots and positions, with a model that reads everything back."""

from __future__ import annotations

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anydraft.methods.base import Drafted, Rollout
from anydraft.models.draft import ModelDraft
from anydraft.plugins.capacity import BoundedDraft
from anydraft.plugins.vllm.runner import PagedRunner
from tests.plugins import fake_vllm
from tests.proof.worlds import Table, ToyTokenizer

TOKENIZER = ToyTokenizer(["a", "b", "ab", "ba"], ("<eos>",))
V = len(TOKENIZER.vocabulary)


def runner(
    monkeypatch: pytest.MonkeyPatch, *, num_blocks: int = 32, max_context: int = 64
) -> tuple[PagedRunner, fake_vllm.PagedTable]:
    layers = {f"layer{i}": fake_vllm.AttentionLayerBase() for i in range(2)}
    model = fake_vllm.PagedTable(Table(V, 5), layers)
    fake_vllm.install(monkeypatch, model)
    config = fake_vllm.FakeConfig(
        model_config=SimpleNamespace(get_vocab_size=lambda: V, dtype=torch.float32),
        cache_config=SimpleNamespace(kv_cache_layout=None),
        compilation_config=SimpleNamespace(layers=layers),
    )
    return PagedRunner(model, config, max_context, num_blocks, fake_vllm.BLOCK), model


def own(ids: list[int], count: int) -> tuple[int, ...]:
    """The table's greedy continuation."""
    table, text = Table(V, 5), list(ids)
    for _ in range(count):
        text.append(int(table.logits(tuple(text)).argmax()))
        if text[-1] == 4:
            break
    return tuple(text[len(ids) :])


def test_rows_of_a_forward_may_differ_in_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    made, model = runner(monkeypatch)
    made.prefill(2, [0, 1, 2, 3, 0], 0)
    logits = made.forward(0, [[1, 2], [], [3, 1]], [0, 0, 5], last_only=True)
    table = Table(V, 5)
    assert logits.shape == (3, 1, V)
    assert torch.equal(logits[0, 0], table.logits((1, 2)).float())
    assert torch.equal(logits[2, 0], table.logits((0, 1, 2, 3, 0, 3, 1)).float())
    assert model.batches == [1, 2]


def test_a_rolled_back_row_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = runner(monkeypatch)
    made.forward(0, [[0, 1, 2, 3, 0, 1]], [0], last_only=True)
    logits = made.forward(0, [[2, 2]], [3], last_only=True)
    assert torch.equal(logits[0, 0], Table(V, 5).logits((0, 1, 2, 2, 2)).float())


def test_long_prompts_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    made, model = runner(monkeypatch, num_blocks=400, max_context=1600)
    made.prefill(0, [0] * 1100, 0)
    assert len(model.batches) == 3


def test_proposal_trees_are_not_for_this_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = runner(monkeypatch)
    with pytest.raises(NotImplementedError):
        made.forward_tree(0, [1], [0], [-1], 0, 0)


def draft(
    monkeypatch: pytest.MonkeyPatch, num_blocks: int, max_context: int = 64
) -> tuple[BoundedDraft, PagedRunner, fake_vllm.PagedTable]:
    made, model = runner(monkeypatch, num_blocks=num_blocks, max_context=max_context)
    return BoundedDraft(ModelDraft(made, TOKENIZER), made.cache, max_context), made, model


def asked(draft: BoundedDraft, texts: dict[Hashable, list[int]], count: int = 3) -> dict[Hashable, Any]:
    asks = {key: Rollout(ids, 0, count, stop_ids=frozenset([4])) for key, ids in texts.items()}
    return dict(draft.answer(asks))


def test_all_rows_draft_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, model = draft(monkeypatch, 32)
    texts: dict[Hashable, list[int]] = {i: [0, 1, 2, 3][: i + 1] for i in range(4)}
    answers = asked(made, texts)
    assert answers == {i: Drafted(own(ids, 3)) for i, ids in texts.items()}
    assert model.batches[0] == 4
    assert len(model.batches) <= 3


def test_rows_come_and_go_and_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """However rows move and whoever lost its blocks, drafts are the table's own continuation."""
    made, runner_, _ = draft(monkeypatch, 10)
    texts = {i: [i % 4, (i + 1) % 4] for i in range(9)}
    for step in range(60):
        running = [(step + 2 * j) % 9 for j in range(3)]
        answers = asked(made, {key: texts[key] for key in running}, 2)
        for key in running:
            assert answers[key] == Drafted(own(texts[key], 2)), (step, key)
            texts[key] = [*texts[key], (step + key) % 4][: 7 + key % 2]
        if step % 7 == 0:
            made.release(running[1])
    assert made.num_evictions > 10
    for key in range(9):
        made.release(key)
    assert runner_.cache.num_free == 10


def test_a_context_longer_than_the_drafts_goes_on_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    made, runner_, _ = draft(monkeypatch, 4, max_context=16)
    text = [0, 1]
    for i in range(60):
        answers = asked(made, {"r": text}, 2)
        assert len(answers["r"].token_ids) >= 1
        text = [*text, i % 4]
    assert made.num_refusals == 0
    made.release("r")
    assert runner_.cache.num_free == 4
