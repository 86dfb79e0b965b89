"""The statistical test on another implementation: it passes what is right and flags what is wrong.

Transformers 5.24 draws wrong text when it samples with a draft of another vocabulary. Other versions may have
repaired that, so the wrong path is only run there; plain sampling must pass in every version.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from anydraft.bench.frequencies import Group, holm
from anydraft.bench.verify_sampling import all_tests, groups_of
from tests import tiny

CONTEXT = "The quick brown fox"
NUM_DRAWS = 250
LENGTH = 3
FALSE_ALARM = 1e-4

WRONG = transformers.__version__.startswith("5.24.")
ASSISTED = {"alone": False, **({"with a draft of another vocabulary": True} if WRONG else {})}


@torch.inference_mode()
def sampled(assisted: bool) -> list[tuple[int, ...]]:
    target, tokenizer = tiny.llama()
    given = tokenizer(CONTEXT, return_tensors="pt")
    options: dict[str, Any] = {}
    if assisted:
        draft = copy.deepcopy(tiny.gemma3()[0])  # it is changed there
        draft.generation_config.num_assistant_tokens = LENGTH
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        options = {
            "assistant_model": draft,
            "tokenizer": tokenizer,
            "assistant_tokenizer": tiny.gemma3()[1],
        }
    torch.manual_seed(0)
    draws = []
    for _ in range(NUM_DRAWS):
        out = target.generate(
            **given, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=LENGTH, **options
        )
        draws.append(tuple(out[0, given.input_ids.shape[1] :].tolist()))
    return draws


@cache
@torch.inference_mode()
def target_row(drawn: tuple[int, ...]) -> torch.Tensor:
    target, tokenizer = tiny.llama()
    ids = [*tokenizer(CONTEXT).input_ids, *drawn]
    return torch.softmax(target(torch.tensor([ids])).logits[0, -1].float(), dim=0)


def smallest_p_value(draws: Sequence[tuple[int, ...]]) -> float:
    groups: dict[tuple[str, str], list[Group]] = {
        ("context", f"token {position + 1}"): groups_of(draws, position, target_row)
        for position in range(LENGTH)
    }
    return min(holm([test.result.p_value for test in all_tests(groups)]))


@pytest.mark.parametrize("assisted", ASSISTED.values(), ids=list(ASSISTED))
def test_what_is_wrong_is_flagged_and_nothing_else(assisted: bool) -> None:
    assert (smallest_p_value(sampled(assisted)) <= FALSE_ALARM) == assisted
