"""A byte-level draft, where SLRS shines: it puts the target's tokens together, TLI has only single bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

import pytest
import torch
import transformers

from anydraft.engine.engine import Engine
from anydraft.engine.outputs import GenerationResult
from anydraft.rules.params import SamplingParams
from tests import tiny
from tests.proof.worlds import Table, TableDraft, ToyTokenizer

TEXT = "".join(tiny.CORPUS)
PROMPTS = ["def fib(n):\n    if n", "The quick brown", "Eins zwei"]


class ByteNgrams(Table):
    """A model of bytes: after the last few, what followed them in a text; shorter histories count less."""

    def __init__(self, text: str, order: int = 6) -> None:
        super().__init__(vocab_size=257, seed=0)
        self._order = order
        self._counts: dict[bytes, Counter[int]] = defaultdict(Counter)
        data = text.encode()
        for at in range(len(data)):
            for size in range(min(order, at) + 1):
                self._counts[data[at - size : at]][data[at]] += 1

    def logits(self, history: tuple[int, ...]) -> torch.Tensor:
        data = bytes(i for i in history[-self._order :] if i < 256)
        row = torch.full((257,), 1e-4, dtype=torch.float64)
        for size in range(len(data) + 1):
            for byte, count in self._counts.get(data[len(data) - size :], Counter()).items():
                row[byte] += count * 8.0**size
        return row.log()


def byte_draft() -> TableDraft:
    return TableDraft(ByteNgrams(TEXT), ToyTokenizer([bytes([b]) for b in range(256)], ("<eos>",)))


@cache
def trained() -> tuple[object, object]:
    """The tiny Llama after a second on the text."""
    torch.manual_seed(0)
    tokenizer = tiny.byte_level()
    config = transformers.LlamaConfig(**{**tiny.llama()[0].config.to_dict(), "initializer_range": 0.1})
    model = transformers.LlamaForCausalLM(config)
    ids = torch.tensor(tokenizer(TEXT).input_ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        starts = torch.randint(0, len(ids) - 32, (8,))
        batch = torch.stack([ids[s : s + 32] for s in starts])
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


def run(method: str, verification: str = "rejection", temperature: float = 1.0) -> list[GenerationResult]:
    engine = Engine(
        trained(),
        None if method == "none" else byte_draft(),
        method=method,
        verification=verification,  # type: ignore[arg-type]
        num_speculative_tokens=4,
        dtype="float32",
    )
    params = [
        SamplingParams(temperature=temperature, max_tokens=40, seed=seed, ignore_eos=True)
        for seed in range(len(PROMPTS))
    ]
    return engine.generate(PROMPTS, params)


def accepted(results: list[GenerationResult]) -> float:
    """Tokens a target call."""
    return sum(len(r.token_ids) for r in results) / sum(r.stats.num_steps for r in results)


@pytest.mark.parametrize("method", ["slrs", "tli", "slem"])
def test_greedy_and_coupled_are_the_targets_own(method: str) -> None:
    for verification, temperature in [("rejection", 0.0), ("coupled", 1.0)]:
        alone = run("none", verification, temperature)
        drafted = run(method, verification, temperature)
        assert [r.token_ids for r in drafted] == [r.token_ids for r in alone]


@pytest.mark.parametrize("verification", ["rejection", "block", "coupled"])
def test_slrs_accepts_more_than_single_bytes_can(verification: str) -> None:
    assert accepted(run("slrs", verification)) > 1.3 * accepted(run("tli", verification))


def test_slrs_accepts_more_when_greedy_too() -> None:
    assert accepted(run("slrs", temperature=0.0)) > 1.3 * accepted(run("tli", temperature=0.0))
