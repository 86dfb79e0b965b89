"""Tiny GGUF files, written as llama.cpp's converters write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

from tests import tiny

CONTROL, NORMAL, UNUSED = 3, 1, 5

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def qwen2(*, tied: bool, seed: int = 3) -> Any:
    """A tiny Qwen2 over the byte-level vocabulary of :mod:`tests.tiny`, with 7 padded rows."""
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=len(tiny.byte_level()) + 7,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    return transformers.Qwen2ForCausalLM(config).eval()


def write_qwen2(
    path: Path,
    model: Any,
    *,
    kinds: dict[str, Kind] | None = None,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    architecture: str = "qwen2",
) -> Path:
    """Write ``model``; ``kinds`` quantizes tensors by GGUF name, ``metadata`` adds or replaces keys."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _write_tokenizer(writer, config.vocab_size)
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        add = {
            str: writer.add_string,
            int: writer.add_uint32,
            float: writer.add_float32,
            bool: writer.add_bool,
        }
        add[type(value)](key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _write_tensor(writer, gguf_name(name), tensor.float().numpy(), kinds or {})
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """``model.layers.0.mlp.up_proj.weight`` -> ``blk.0.ffn_up.weight``."""
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[rest]}.{suffix}"
    return f"{_NAMES[stem]}.{suffix}"


def _write_tensor(writer: Any, name: str, array: np.ndarray, kinds: dict[str, Kind]) -> None:
    kind = kinds.get(name)
    if kind is None:
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)


def _write_tokenizer(writer: Any, rows: int) -> None:
    tokenizer = tiny.byte_level()
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    specials = set(tokenizer.all_special_ids) | {1}
    types = [CONTROL if i in specials else NORMAL for i in range(len(tokens))]
    padding = rows - len(tokens)
    import json

    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in range(padding)])
    writer.add_token_types(types + [UNUSED] * padding)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tiny.CHATML)
