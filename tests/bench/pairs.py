"""Model descriptions around tiny tokenizers."""

from __future__ import annotations

from typing import Any

from anydraft.models.describe import ModelInfo


def info(tokenizer: Any, name: str = "model", **given: Any) -> ModelInfo:
    """``tokenizer`` as a model of a thousand parameters and as many rows as it has ids, unless ``given``."""
    defaults = {
        "stop_ids": frozenset(),
        "max_context": 256,
        "vocab_size": len(tokenizer),
        "num_parameters": 1000,
    }
    return ModelInfo(name=name, hf_tokenizer=tokenizer, architecture="llama", **{**defaults, **given})
