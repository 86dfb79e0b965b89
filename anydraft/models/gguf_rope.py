"""Scaled rotary embeddings of a GGUF file, which Transformers' reader drops.

A model that runs without its scaling gives worse text the longer the context, and no error; so scaling
is carried over where it can be, and refused where it cannot.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anydraft.errors import ModelError
from anydraft.models.gguf_file import GGUFFile, GGUFTensor

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every Llama 3.1 to 3.3 states; only the factor differs."""


def restore_rope_scaling(config: Any, gguf: GGUFFile) -> None:
    """Put the file's rotary scaling into ``config``, if the file has any.

    Raises:
        ModelError: a scaling that cannot be expressed.
    """
    if not isinstance(getattr(config, "rope_parameters", None), dict):
        return
    factors = [t for t in gguf.tensors if t.name.startswith(("rope_freqs.", "rope_factors"))]
    if factors:
        if [t.name for t in factors] != ["rope_freqs.weight"]:
            raise _refusal(gguf, ", ".join(t.name for t in factors))
        _restore_llama3(config, gguf, factors[0])
        return
    key = f"{gguf.architecture}.rope.scaling."
    kind = gguf.metadata.get(key + "type", "none")
    if kind == "none":
        return
    if kind not in ("linear", "yarn") or "rope_theta" not in config.rope_parameters:
        raise _refusal(gguf, f"{key}type={kind}")
    scaling = {"rope_type": kind, "factor": float(gguf.metadata[key + "factor"])}
    if kind == "yarn":
        original = gguf.metadata.get(key + "original_context_length")
        if original is None:
            raise _refusal(gguf, "yarn without original_context_length")
        scaling["original_max_position_embeddings"] = int(original)
    config.rope_parameters = config.rope_parameters | scaling


def _restore_llama3(config: Any, gguf: GGUFFile, tensor: GGUFTensor) -> None:
    """Llama 3's scaling: the file holds the divisor of each frequency; find the parameters that give them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stated = np.fromfile(gguf.path, dtype="<f4", count=tensor.nbytes // 4, offset=tensor.offset)
    plain = dict(config.rope_parameters)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if tensor.ggml_type != 0 or len(stated) != head_dim // 2:
        raise _refusal(gguf, tensor.name)
    config.rope_parameters = plain | _LLAMA3 | {"rope_type": "llama3", "factor": float(stated.max())}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    unscaled = float(plain["rope_theta"]) ** (-np.arange(0, head_dim, 2) / head_dim)
    if not np.allclose(unscaled / scaled.numpy(), stated, rtol=1e-3):
        raise _refusal(gguf, tensor.name)


def _refusal(gguf: GGUFFile, what: str) -> ModelError:
    return ModelError(
        f"{gguf.path} scales its rotary embeddings in a way that a conversion would lose ({what}); use the "
        "original model folder instead of the GGUF file"
    )
