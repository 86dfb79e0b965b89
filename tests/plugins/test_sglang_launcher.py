"""SGLang's stock launcher with our algorithms: servers that write the target's own text, and starts that it refuses."""

from __future__ import annotations

import importlib.util
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.own_session import in_own_session, result_of
from tests.plugins.sglang_cpu import ENGINE, environment
from tests.plugins.sglang_server import Completions, completions, flags, server

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]


@pytest.mark.parametrize(
    ("algorithm", "context"),
    [("ANYDRAFT_TLI", ""), ("ANYDRAFT_TLI", "last"), ("ANYDRAFT_SLEM", "")],
)
def test_a_foreign_draft_leaves_the_text_as_it_is(
    algorithm: str, context: str, folders: dict[str, str], own: Completions
) -> None:
    """With more requests than run at once, and prompts read in chunks."""
    drafting = {
        "model_path": folders["target"],
        "speculative_algorithm": algorithm,
        "speculative_draft_model_path": folders["draft"],
        "speculative_num_steps": 3,
        "max_running_requests": 3,
        "chunked_prefill_size": 32,
    }
    with server({"ANYDRAFT_TLI_CONTEXT": context}, **drafting) as address:
        assert completions(address) == own
        with urllib.request.urlopen(f"{address}/server_info", timeout=60) as response:
            assert json.load(response)["speculative_algorithm"] == algorithm


TLI, SLEM = {"speculative_algorithm": "ANYDRAFT_TLI"}, {"speculative_algorithm": "ANYDRAFT_SLEM"}
IN_SLOTS = {"ANYDRAFT_TLI_CONTEXT": "last"}
REFUSED: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    ("no draft, TLI", {}, TLI, "ANYDRAFT_TLI needs a draft model: give --speculative-draft-model-path"),
    ("no draft, SLEM", {}, SLEM, "ANYDRAFT_SLEM needs a draft model: give --speculative-draft-model-path"),
    (
        "draft that does not exist",
        {},
        TLI | {"draft": "/nowhere/draft"},
        "there is no model at /nowhere/draft; give",
    ),
    (
        "two devices",
        {},
        SLEM | {"draft": "draft", "tp_size": 2},
        "--tp-size 2 is not supported by ANYDRAFT_SLEM yet",
    ),
    (
        "trees",
        {},
        TLI | {"draft": "draft", "speculative_eagle_topk": 2},
        "--speculative-eagle-topk 2 is not supported: ANYDRAFT_TLI drafts chains; leave it out or give 1",
    ),
    (
        "steps and tokens",
        {},
        TLI | {"draft": "draft", "speculative_num_steps": 3, "speculative_num_draft_tokens": 9},
        "--speculative-num-draft-tokens 9 must be --speculative-num-steps + 1 = 4",
    ),
    (
        "no steps",
        {},
        SLEM | {"draft": "draft", "speculative_num_steps": 0},
        "--speculative-num-steps 0 must be at",
    ),
    (
        "no text in common",
        {},
        TLI | {"draft": "apart"},
        "no text token in common, which ANYDRAFT_TLI needs; use",
    ),
    (
        "no text in common, in slots",
        IN_SLOTS,
        TLI | {"draft": "apart"},
        "no text token in common, which ANYDRAFT_TLI",
    ),
    ("a draft that sees", {}, SLEM | {"draft": "multimodal"}, "is multimodal; give a text-only model"),
    ("short draft in slots", IN_SLOTS, TLI | {"draft": "short"}, "give --context-length 256 or less"),
    (
        "unknown context",
        {"ANYDRAFT_TLI_CONTEXT": "unk"},
        TLI | {"draft": "draft"},
        "ANYDRAFT_TLI_CONTEXT='unk' is unknown; choose one of retokenized, last, eos",
    ),
    (
        "unknown option",
        {"ANYDRAFT_DTYPE": "int3"},
        TLI | {"draft": "draft"},
        "ANYDRAFT_DTYPE='int3' is unknown; choose one of",
    ),
]


def test_what_cannot_work_is_refused_before_the_target_is_loaded(folders: dict[str, str]) -> None:
    """In one line that says what to do. The target has no weights: to load it would be another error."""
    launches = []
    for _, variables, given, _ in REFUSED:
        arguments = ENGINE | {"model_path": folders["unloadable"]} | given
        if draft := arguments.pop("draft", None):
            arguments["speculative_draft_model_path"] = folders.get(draft, draft)
        launches.append({"arguments": flags(**arguments), "environment": variables})
    script = Path(__file__).with_name("launch_sglang.py")
    command = [sys.executable, "-W", "ignore", str(script), json.dumps(launches)]
    results = result_of(in_own_session(command, environment(), 580))
    for (name, _, _, said), result in zip(REFUSED, results, strict=True):
        told = [line for line in result["output"].splitlines() if line.startswith("error: ")]
        assert result["code"] == 1, (name, result)
        assert len(told) == 1, (name, result)
        assert said in told[0], (name, result)
        assert "Traceback" not in result["output"], (name, result)
