"""Which architectures can be served: decoder-only ones whose cache can be rolled back to any length."""

from __future__ import annotations

from typing import Any

from anydraft.errors import ModelError

_ATTENTION = frozenset(
    {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "attention",
        "global",
        "local",
        "hybrid_attention",
    }
)
"""``layer_types`` whose whole state is keys and values by position."""

_RECURRENT_TYPES = frozenset(
    {
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "jamba",
        "lfm2",
        "lfm2_moe",
        "mamba",
        "mamba2",
        "minimax",
        "nemotron_h",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
    }
)
"""``model_type`` of models with state that cannot be cut back, for configs that do not show it."""


def refuse_unsupported(config: Any, name: str) -> None:
    """Raise ModelError for an encoder, an encoder-decoder or a recurrent model, by its config.

    ``name`` is how the user named the model.
    """
    kind = getattr(config, "model_type", "") or type(config).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder model ({kind}), which cannot be decoded with drafts here; "
            "use a decoder-only model such as Qwen, Llama or Gemma"
        )
    text = config.get_text_config()
    layers = set(getattr(text, "layer_types", None) or ()) - _ATTENTION
    recurrent = sorted(layers) or (
        [kind] if {kind, getattr(text, "model_type", "")} & _RECURRENT_TYPES else []
    )
    if recurrent:
        raise ModelError(
            f"{name} is a recurrent or hybrid-state model ({', '.join(recurrent)}): its state cannot be rolled "
            "back after a rejected draft; use a model with attention only"
        )
    if not _is_causal(config):
        raise ModelError(
            f"{name} is not a causal language model ({kind}): it has no next-token head, as encoders have none; "
            "use a decoder-only model such as Qwen, Llama or Gemma"
        )


def refuse_stateful(model: Any, name: str) -> None:
    """The same for a loaded model: Transformers marks those that keep recurrent state as stateful."""
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{name} ({type(model).__name__}) keeps recurrent state that cannot be rolled back after a rejected "
            "draft; use a model with attention only"
        )


def _is_causal(config: Any) -> bool:
    from transformers import AutoModelForCausalLM

    if type(config) not in AutoModelForCausalLM._model_mapping and not _has_remote_causal(config):
        return False
    # BERT-like encoders have a causal class as well, meant as half of an encoder-decoder.
    architectures = getattr(config, "architectures", None) or ()
    named = [
        a for a in architectures if a.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    ]
    if named:
        return True
    return not hasattr(config, "is_decoder") or not _encoder_family(config)


def _has_remote_causal(config: Any) -> bool:
    return "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})


def _encoder_family(config: Any) -> bool:
    """Whether the architecture is an encoder unless ``is_decoder`` says otherwise."""
    from transformers import AutoModelForMaskedLM

    return type(config) in AutoModelForMaskedLM._model_mapping and not config.is_decoder
