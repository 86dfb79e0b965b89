"""Which architectures can be served: decoder-only ones whose cache can be rolled back to any length."""

from __future__ import annotations

from typing import Any

from anydraft.errors import ModelError

_ROLLS_BACK = frozenset({"full_attention", "sliding_attention", "attention"})
"""``layer_types`` whose whole state is keys and values by position."""

_RECURRENT_MODELS = frozenset({"lfm2", "lfm2_moe", "mamba", "mamba2", "rwkv", "xlstm", "recurrent_gemma"})
"""``model_type`` of models whose config does not show, in every version, that they keep other state."""

_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


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
    layers = sorted(set(getattr(text, "layer_types", None) or ()) - _ROLLS_BACK)
    if layers or {kind, getattr(text, "model_type", "")} & _RECURRENT_MODELS:
        raise _cannot_roll_back(name, ", ".join(layers) or kind)
    if not _is_causal(config):
        raise ModelError(
            f"{name} is not a causal language model ({kind}: an encoder, or made for other input than text); "
            "use a decoder-only model such as Qwen, Llama or Gemma"
        )


def refuse_stateful(model: Any, name: str) -> None:
    """The same for a loaded model: Transformers marks those that keep recurrent state as stateful."""
    if getattr(model, "_is_stateful", False):
        raise _cannot_roll_back(name, type(model).__name__)


def _cannot_roll_back(name: str, what: str) -> ModelError:
    return ModelError(
        f"{name} keeps state that cannot be rolled back after a rejected draft ({what}: recurrent, hybrid or "
        "sparse-index layers); use a model whose layers are all ordinary attention"
    )


def _is_causal(config: Any) -> bool:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return True
    if type(config) not in AutoModelForCausalLM._model_mapping:
        return False
    if any(name.endswith(_HEADS) for name in getattr(config, "architectures", None) or ()):
        return True
    # BERT and its kin have a causal class as well, which attends both ways unless is_decoder says otherwise.
    encoder = type(config) in AutoModelForMaskedLM._model_mapping and hasattr(config, "is_decoder")
    return not encoder or bool(config.is_decoder)
