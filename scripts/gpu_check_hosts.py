"""The parts of gpu_check.py that run in vLLM and in SGLang."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from scripts.spelling_models import QWEN_1_5B, SMALL, SMALLER, SMOLLM2_135M, STARTS, K, spelling_model
from tests import tiny
from tests.plugins.own_session import in_own_session, result_of

MAX_TOKENS = 48
_LONGEST = 280.0
"""Seconds that one engine may take."""
_MOST = 0.8
"""Share of the draft tokens that is accepted at least, where nearly all should be."""
_SOME = 0.15
"""The same of a random model that drafts for itself in SGLang's slots, where a draft does not see a prompt's first
token: 0.26 on a CPU. (One that reads the text split anew, which is another context: 0.08.)"""
ROOT = Path(__file__).parents[1]

Run = Callable[[Path, str, str | None], Mapping[str, Any]]
"""From a folder of models, the target's name in it and a method (None: no draft) to what the host wrote and counted."""


def check_vllm(device: torch.device) -> list[str]:
    from anydraft.bench.vllm_drafting import with_plugin
    from tests.plugins import run_vllm

    os.environ["PYTHONPATH"] = _python_path()
    common: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 4, "enable_prefix_caching": False}
    common |= {"gpu_memory_utilization": 0.5} if device.type == "cuda" else {}

    def run(folder: Path, target: str, method: str | None) -> Any:
        plugin = with_plugin(draft_of(folder, target), K, method=method) if method else {}
        given = {"model": str(folder / target), "dtype": dtype_of(target), **common, **plugin}
        found = result_of(run_vllm.start(given, prompts(), max_tokens=MAX_TOKENS))
        counters = found["counters"]
        drafted, accepted = (
            counters.get(f"spec_decode_num_{kind}_tokens", 0) for kind in ("draft", "accepted")
        )
        return {"outputs": found["outputs"], "accepted": accepted / drafted if drafted else 0.0}

    return texts_and_acceptance(device, run, ("slem", "tli", "auto"), ("standard", _MOST))


def check_sglang(device: torch.device) -> list[str]:
    from tests.plugins import run_sglang, sglang_cpu

    cuda = device.type == "cuda"
    common = {"mem_fraction_static": 0.5, "context_length": 512, "max_running_requests": 4}
    common |= {} if cuda else sglang_cpu.ENGINE
    environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1"} if cuda else sglang_cpu.environment()
    environment["PYTHONPATH"] = _python_path(environment.get("PYTHONPATH", ""))

    def run(folder: Path, target: str, method: str | None) -> Any:
        given = {
            "model_path": str(folder / target),
            "dtype": dtype_of(target),
            "log_level": "error",
            **common,
        }
        if method:
            given["speculative_algorithm"] = f"ANYDRAFT_{method.upper()}"
            given["speculative_draft_model_path"] = draft_of(folder, target)
            given["speculative_num_steps"] = K
        # In SGLang's slots a draft reads the target's own tokens, which a random text is not split into again.
        variables = {"ANYDRAFT_TLI_CONTEXT": "last"} if target == "random" and method else {}
        arguments = {"engine": given, "prompts": prompts(), "max_tokens": MAX_TOKENS}
        command = [sys.executable, "-W", "ignore", run_sglang.__file__, json.dumps(arguments)]
        found = result_of(in_own_session(command, environment | variables, _LONGEST))
        tokens = MAX_TOKENS * len(found["outputs"]) / max(sum(found["steps"]), 1)
        return {"outputs": found["outputs"], "accepted": (tokens - 1) / K}

    return texts_and_acceptance(device, run, ("slem", "tli"), ("tli", _SOME))


def texts_and_acceptance(
    device: torch.device, run: Run, methods: tuple[str, ...], for_itself: tuple[str, float]
) -> list[str]:
    """Whether a spelling pair's text is the target's own with each method, and its drafts are accepted; and the same of
    a random model, where attention decides, which drafts ``for_itself``: with that method, accepted so much."""
    wrong = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_models(device, folder)
        for target, tried in (("spelling", [(m, _MOST) for m in methods]), ("random", [for_itself])):
            alone = run(folder, target, None)
            for method, least in tried:
                started = time.perf_counter()
                result = run(folder, target, method)
                print(
                    f"{target} target, {method}: {100 * result['accepted']:.0f} % of the draft tokens accepted, "
                    f"{time.perf_counter() - started:.0f} s with the start"
                )
                if result["outputs"] != alone["outputs"]:
                    wrong.append(f"{target} target: {method} writes another text")
                if result["accepted"] < least:
                    wrong.append(
                        f"{target} target: {method}'s drafts are accepted {result['accepted']:.2f} of the time"
                    )
    return wrong


def save_models(device: torch.device, folder: Path) -> None:
    """ "spelling", its "draft" of another vocabulary, and "random"."""
    target, draft = (QWEN_1_5B, SMOLLM2_135M) if device.type == "cuda" else (SMALL, SMALLER)
    spelling = {"spelling": (target, tiny.byte_level()), "draft": (draft, tiny.sentencepiece_like())}
    for name, (shape, tokenizer) in spelling.items():
        spelling_model(shape, tokenizer, device, torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SMALL.sizes | {"vocab_size": len(tiny.byte_level())}, initializer_range=0.3
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "random")
    tiny.byte_level().save_pretrained(folder / "random")


def draft_of(folder: Path, target: str) -> str:
    return str(folder / {"spelling": "draft", "random": "random"}[target])


def dtype_of(target: str) -> str:
    """Exact where logits lie close to each other."""
    return {"spelling": "bfloat16", "random": "float32"}[target]


def prompts() -> list[list[int]]:
    return [tiny.byte_level().encode(start) for start in STARTS]


def _python_path(more: str = "") -> str:
    """With this repository first: AnyDraft need not be installed."""
    return os.pathsep.join(path for path in (str(ROOT), more or os.environ.get("PYTHONPATH", "")) if path)
