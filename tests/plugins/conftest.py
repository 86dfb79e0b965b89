"""Tiny models in folders for engines that run in processes of their own, and what SGLang writes without a draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests import tiny
from tests.plugins.sglang_server import Completions, completions, server

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "head_dim": 32,
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Random Llamas by what they are: "target" of a byte-level vocabulary, and "renumbered", the same under other ids;
    "draft" of a SentencePiece-like one, and drafts "short" (half the context), "apart" (no text token in common) and
    "multimodal"; and "unloadable", a target without weights."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    _save(root / "target", tiny.byte_level())
    _renumber(root / "target", root / "renumbered")
    _save(root / "draft", tiny.sentencepiece_like())
    _save(root / "short", tiny.sentencepiece_like(), max_position_embeddings=256)
    _save(root / "apart", tiny.apart())
    _save(root / "multimodal", tiny.sentencepiece_like())
    config = transformers.Gemma3Config(text_config={"vocab_size": len(tiny.sentencepiece_like())})
    (root / "multimodal" / "config.json").write_text(config.to_json_string())
    _save(root / "unloadable", tiny.byte_level())
    (root / "unloadable" / "model.safetensors").unlink()
    return {folder.name: str(folder) for folder in root.iterdir()}


@pytest.fixture(scope="session")
def own(folders: dict[str, str]) -> Completions:
    """The text and ids of SGLang's stock server without a draft."""
    with server({}, model_path=folders["target"]) as address:
        return completions(address)


def _save(folder: Path, tokenizer: Any, **sizes: int) -> None:
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **(SIZES | sizes))
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        setattr(config, key, getattr(tokenizer, key))
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _renumber(source: Path, folder: Path) -> None:
    """The model in ``source`` with its ids counted from the other end: what it says stays the same."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.LlamaForCausalLM.from_pretrained(source)
    last = len(tokenizer) - 1
    for end in (model.get_input_embeddings(), model.get_output_embeddings()):
        end.weight.data = end.weight.data.flip(0)
    for config in (model.config, model.generation_config):
        for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
            if (token_id := getattr(config, key)) is not None:
                setattr(config, key, last - token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"
    parts = json.loads(file.read_text())
    parts["model"]["vocab"] = {token: last - i for token, i in parts["model"]["vocab"].items()}
    for token in parts["added_tokens"]:
        token["id"] = last - token["id"]
    file.write_text(json.dumps(parts))
