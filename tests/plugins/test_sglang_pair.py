"""The pair that SGLang's arguments name, read without weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers

from anydraft.errors import ModelError
from anydraft.plugins.sglang.pair import read_pair
from tests import tiny


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    for name, (model, tokenizer) in (("target", tiny.llama()), ("draft", tiny.gemma3())):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    return {name: tmp_path / name for name in ("target", "draft")}


def arguments(folders: dict[str, Path], **given: object) -> SimpleNamespace:
    named = {"model_path": str(folders["target"]), "speculative_draft_model_path": str(folders["draft"])}
    return SimpleNamespace(**({"tokenizer_path": None} | named | given))


def test_a_pair_is_read(folders: dict[str, Path]) -> None:
    pair = read_pair(arguments(folders))
    assert pair.target_context == pair.info.max_context == 256
    assert len(pair.bridge.intersection) > 100
    assert tiny.byte_level().eos_token_id in pair.target.vocabulary.stop_ids


def test_a_target_that_transformers_does_not_know_is_sglangs_concern(folders: dict[str, Path]) -> None:
    (folders["target"] / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    (folders["target"] / "generation_config.json").unlink()
    pair = read_pair(arguments(folders, tokenizer_path=str(folders["target"])))
    assert pair.target_context is None
    assert pair.target.vocabulary.eos_id == tiny.byte_level().eos_token_id


def test_a_draft_that_cannot_be_loaded_is_refused(folders: dict[str, Path]) -> None:
    (folders["draft"] / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        read_pair(arguments(folders))
    with pytest.raises(ModelError, match="there is no model at"):
        read_pair(arguments(folders, speculative_draft_model_path=str(folders["draft"] / "gone")))


def test_a_multimodal_draft_is_refused(folders: dict[str, Path]) -> None:
    text = json.loads((folders["draft"] / "config.json").read_text())
    config = transformers.Gemma3Config(text_config=text)
    (folders["draft"] / "config.json").write_text(config.to_json_string())
    with pytest.raises(ModelError, match="is multimodal; give a text-only model"):
        read_pair(arguments(folders))
