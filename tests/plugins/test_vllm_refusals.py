"""A real vLLM and what cannot work: refused in one line, before the target's weights (which are not even there)."""

from __future__ import annotations

import importlib.util
import json
import shutil
from typing import Any

import pytest
import transformers

from anydraft.errors import AnyDraftError
from tests import tiny
from tests.plugins.run_vllm import ENVIRONMENT, start

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

PROPOSER = "anydraft.plugins.vllm.AnyDraftProposer"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    target, tokenizer = tiny.llama()
    target.config.save_pretrained(root / "target")
    tokenizer.save_pretrained(root / "target")
    draft, tokenizer = tiny.gemma3()
    draft.save_pretrained(root / "draft")
    tokenizer.save_pretrained(root / "draft")
    for name in ("bare", "multimodal"):
        shutil.copytree(root / "draft", root / name)
    (root / "bare" / "model.safetensors").unlink()
    text = json.loads((root / "draft" / "config.json").read_text())
    (root / "multimodal" / "config.json").write_text(
        transformers.Gemma3Config(text_config=text).to_json_string()
    )
    shutil.copytree(root / "draft", root / "apart")
    for file in (root / "apart").glob("*token*"):
        file.unlink()
    (root / "apart" / "generation_config.json").unlink(missing_ok=True)
    config = text | dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
    (root / "apart" / "config.json").write_text(json.dumps(config))
    tiny.apart().save_pretrained(root / "apart")
    return {path.name: str(path) for path in root.iterdir()}


def engine(folders: dict[str, str], plugin: dict[str, Any], count: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "model": folders["target"],
        "dtype": "float32",
        "max_model_len": 128,
        "speculative_config": {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": count},
        "additional_config": {"anydraft": plugin},
        **more,
    }


def refusal(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """What the proposer says to a config of vLLM's own with these options of the plugin."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.sample import rejection_sampler

    from anydraft.plugins.vllm import AnyDraftProposer
    from anydraft.plugins.vllm.sampling import expand_batch_to_tokens

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # Only a worker of vLLM's has kernels for CPUs here, right or wrong.
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand_batch_to_tokens)
    if draft := options.get("draft"):
        options["draft"] = folders.get(draft, draft)
    config = EngineArgs(**engine(folders, options)).create_engine_config()
    with pytest.raises(AnyDraftError) as caught:
        AnyDraftProposer(config)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "magic"}, "method='magic' is unknown; choose one of auto, slem"),
        ({"draft": "/gone/draft"}, "there is no model at /gone/draft; give an existing folder"),
        ({"draft": "bare"}, "has no weights (*.safetensors); download the model again"),
        (
            {"draft": "bare", "quantization": "int8"},
            "has no weights (*.safetensors); download the model again",
        ),
        ({"draft": "multimodal"}, "is multimodal; give a text-only model"),
        ({"draft": "multimodal", "quantization": "int8"}, "is multimodal; give a text-only model"),
        ({"draft": "draft", "quantization": "unheard-of"}, "Unknown quantization method: unheard-of"),
        ({"draft": "apart", "method": "tli"}, "no text token in common, which tli needs; use slem"),
    ],
)
def test_what_cannot_work_is_refused(
    options: dict[str, Any], said: str, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said in refusal(folders, monkeypatch, **options)


def test_another_vllm_is_refused(folders: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm
    from vllm.v1 import kv_cache_interface

    monkeypatch.setattr(vllm, "__version__", "9.9.9")
    monkeypatch.delattr(kv_cache_interface, "create_kv_cache_views")
    message = refusal(folders, monkeypatch, draft="draft")
    assert message.startswith("this vLLM (9.9.9) is not one that AnyDraft knows: vllm.v1.kv_cache_interface.")
    assert "Supported is vLLM 0.32; install vllm~=0.32.0" in message


@pytest.mark.parametrize(
    ("options", "count", "said"),
    [
        ({"draft": "bare"}, 4, "has no weights (*.safetensors); download the model again"),
        ({"method": "lookup"}, 0, "num_speculative_tokens"),
    ],
)
def test_the_engine_ends_and_says_why(
    options: dict[str, Any], count: int, said: str, folders: dict[str, str]
) -> None:
    if draft := options.get("draft"):
        options = options | {"draft": folders[draft]}
    done = start(engine(folders, options, count), prompts=[[5]])
    assert done.returncode != 0
    log = done.stdout + done.stderr
    assert said in log
    assert "Cannot find any model weights" not in log
