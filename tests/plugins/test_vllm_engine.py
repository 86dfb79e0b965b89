"""Real vLLM engines with tiny random models, float32: texts are the target's own, drafts the draft's own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers

from anydraft.bench.frequencies import holm
from anydraft.bench.verify_sampling import all_tests, groups_of
from tests import tiny
from tests.plugins.conftest import SIZES
from tests.plugins.own_session import result_of
from tests.plugins.run_vllm import start

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

MAX_TOKENS = 24
K = 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A Llama over a byte-level vocabulary and a Gemma-3 with windows of 16 over a SentencePiece-like one."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    llama = transformers.LlamaConfig(vocab_size=len(tiny.byte_level()), **SIZES)
    gemma = transformers.Gemma3TextConfig(
        vocab_size=len(tiny.sentencepiece_like()),
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=32,
        **SIZES,
    )
    made = {
        "llama": (transformers.LlamaForCausalLM(llama), tiny.byte_level()),
        "gemma": (transformers.Gemma3ForCausalLM(gemma), tiny.sentencepiece_like()),
    }
    for name, (model, tokenizer) in made.items():
        for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
            setattr(model.config, key, getattr(tokenizer, key))
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return {name: str(root / name) for name in made}


def run(
    model: str,
    prompts: list[list[int]],
    plugin: dict[str, Any] | None,
    sampling: dict[str, Any] | None = None,
    max_tokens: int = MAX_TOKENS,
    **engine: Any,
) -> dict[str, Any]:
    settings = {"model": model, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, **engine}
    if plugin is not None:
        settings["speculative_config"] = {
            "method": "custom_class",
            "model": "anydraft.plugins.vllm.AnyDraftProposer",
            "num_speculative_tokens": K,
        }
        settings["additional_config"] = {"anydraft": plugin}
    done = start(settings, prompts, max_tokens=max_tokens, sampling=sampling)
    result: dict[str, Any] = result_of(done)
    return result


def prompts(encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Of different lengths, beyond the sliding window."""
    texts = [*tiny.CORPUS[:3], tiny.CORPUS[0] + tiny.CORPUS[1], "The quick", "x"]
    return [encode(text)[:90] for text in texts]


@pytest.fixture(scope="module")
def own(folders: dict[str, str]) -> list[list[int]]:
    outputs: list[list[int]] = run(folders["llama"], prompts(tiny.byte_level().encode), None)["outputs"]
    return outputs


@pytest.mark.parametrize("method", ["slem", "tli"])
def test_a_foreign_draft_leaves_the_text_as_it_is(
    method: str, folders: dict[str, str], own: list[list[int]]
) -> None:
    """With so few blocks that requests are preempted, and prompts read in chunks."""
    result = run(
        folders["llama"],
        prompts(tiny.byte_level().encode),
        {"draft": folders["gemma"], "method": method},
        num_gpu_blocks_override=9,
        block_size=32,
        max_num_batched_tokens=48,
        enable_prefix_caching=False,
    )
    assert result["outputs"] == own
    assert result["counters"]["spec_decode_num_draft_tokens"] > 20
    assert result["counters"]["num_preemptions"] > 0


@pytest.mark.parametrize(("name", "method"), [("llama", "standard"), ("gemma", "standard")])
def test_a_model_that_drafts_for_itself_is_always_right(
    name: str, method: str, folders: dict[str, str]
) -> None:
    """So its private keys and values, positions and sliding windows are those of the target."""
    tokenizer = {"llama": tiny.byte_level(), "gemma": tiny.sentencepiece_like()}[name]
    counters = run(folders[name], prompts(tokenizer.encode), {"draft": folders[name], "method": method})[
        "counters"
    ]
    drafted, accepted = counters["spec_decode_num_draft_tokens"], counters["spec_decode_num_accepted_tokens"]
    assert accepted > 0.9 * drafted > 60, "but for a near tie, which costs the rest of its draft"


def test_an_own_draft_in_int8_and_auto_leave_the_text_as_it_is(
    folders: dict[str, str], own: list[list[int]]
) -> None:
    plugin = {"draft": folders["gemma"], "method": "auto", "quantization": "int8"}
    result = run(folders["llama"], prompts(tiny.byte_level().encode), plugin)
    assert result["outputs"] == own


def test_sampling_with_a_draft_is_sampling(folders: dict[str, str], own: list[list[int]]) -> None:
    """Where vLLM expands sampling parameters wrongly on a CPU, top_k=1 at a temperature is not greedy."""
    result = run(
        folders["llama"],
        prompts(tiny.byte_level().encode),
        {"draft": folders["llama"], "method": "standard"},
        sampling={"temperature": 1.0, "top_k": 1},
    )
    assert result["outputs"] == own
    assert result["counters"]["spec_decode_num_accepted_tokens"] > 60


def test_sampled_tokens_have_the_targets_frequencies(folders: dict[str, str]) -> None:
    """Drafts that are the target's own best token are accepted as often as it is drawn, and what else is drawn is
    right too."""
    num_draws, num_tokens, temperature = 400, 4, 0.8
    contexts = [tuple(tiny.byte_level().encode(text)[:8]) for text in tiny.CORPUS[:2]]
    result = run(
        folders["llama"],
        [list(context) for context in contexts for _ in range(num_draws)],
        {"draft": folders["llama"], "method": "standard"},
        sampling={"temperature": temperature},
        max_tokens=num_tokens,
        max_num_seqs=100,
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.float32).eval()

    @torch.inference_mode()
    def row(ids: tuple[int, ...]) -> torch.Tensor:
        return torch.softmax(model(torch.tensor([ids])).logits[0, -1] / temperature, dim=-1)

    groups = {}
    for number, context in enumerate(contexts):
        draws = [tuple(ids) for ids in result["outputs"][number * num_draws :][:num_draws]]
        for position in range(num_tokens):
            following = partial(lambda context, drawn: row(context + drawn), context)
            groups[f"context {number}", f"token {position}"] = groups_of(draws, position, following)
    tests = all_tests(groups)
    assert min(holm([test.result.p_value for test in tests])) > 1e-3, tests
    assert result["counters"]["spec_decode_num_accepted_tokens"] > 200


@pytest.mark.parametrize("method", ["standard", "auto"])
def test_target_and_draft_are_split_over_two_ranks(
    method: str, folders: dict[str, str], own: list[list[int]]
) -> None:
    """Of the methods one decides by the clock; ranks that decided otherwise would wait for each other for ever."""
    plugin = {"draft": folders["llama"], "method": method}
    result = run(folders["llama"], prompts(tiny.byte_level().encode), plugin, tensor_parallel_size=2)
    assert result["outputs"] == own
    drafted, accepted = (
        result["counters"][f"spec_decode_num_{kind}_tokens"] for kind in ("draft", "accepted")
    )
    assert drafted > 0
    if method == "standard":
        assert accepted > 0.9 * drafted > 60
