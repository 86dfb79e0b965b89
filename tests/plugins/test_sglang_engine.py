"""Real SGLang engines with tiny random models, float32, in which the target drafts for itself, also under other ids."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.own_session import in_own_session, result_of
from tests.plugins.sglang_cpu import ENGINE, environment
from tests.plugins.sglang_server import MAX_TOKENS, Completions, prompts

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]


def run(folders: dict[str, str], algorithm: str, draft: str, **variables: str) -> dict[str, Any]:
    drafting = {
        "model_path": folders["target"],
        "speculative_algorithm": algorithm,
        "speculative_draft_model_path": folders[draft],
        "speculative_num_steps": 4,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 5,
    }
    script = Path(__file__).with_name("run_sglang.py")
    arguments = {"engine": ENGINE | drafting, "prompts": prompts(), "max_tokens": MAX_TOKENS}
    command = [sys.executable, "-W", "ignore", str(script), json.dumps(arguments)]
    result: dict[str, Any] = result_of(in_own_session(command, environment() | variables, 580))
    return result


def test_in_slots_tli_is_sglangs_own_drafting(folders: dict[str, str], own: Completions) -> None:
    """So embedding, head and ids are right. (A model that drafts for itself is not always right in SGLang, which hides
    the first token of a prompt from a draft; and TLI never drafts padding.)"""
    result = run(folders, "ANYDRAFT_TLI", "renumbered", ANYDRAFT_TLI_CONTEXT="last")
    theirs = run(folders, "STANDALONE", "target")
    assert result["outputs"] == theirs["outputs"] == [ids for _, ids in own]
    assert sum(result["steps"]) <= 1.05 * sum(theirs["steps"])
    assert sum(result["steps"]) < 0.8 * MAX_TOKENS * len(own)


@pytest.mark.parametrize("algorithm", ["ANYDRAFT_TLI", "ANYDRAFT_SLEM"])
def test_a_draft_beside_sglang_reads_the_text_that_the_target_reads(
    algorithm: str, folders: dict[str, str], own: Completions
) -> None:
    """Where the text so far is split as its tokenizer splits it, the target accepts what it drafted itself."""
    result = run(folders, algorithm, "renumbered")
    assert result["outputs"] == [ids for _, ids in own]
    assert sum(result["steps"]) < 0.8 * MAX_TOKENS * len(own)
