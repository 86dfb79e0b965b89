"""The C forward pass of common decoder-only models: weights of a Transformers model, laid out for decoder.c."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import torch

from anydraft.kernels.library import WeightStruct, available, load
from anydraft.kernels.linear import PackedLinear, WeightFormat
from anydraft.kernels.threads import num_threads

_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
_ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
_FIRST_POSITIONS = 2048
_MOST_PRUNED = 2
"""Pruned LM heads that are kept."""


class _Layer(ctypes.Structure):
    """``decoder_layer`` of decoder.h."""

    _fields_ = (
        *((name, WeightStruct) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "attention_norm",
                "mlp_norm",
                "q_norm",
                "k_norm",
                "post_attention_norm",
                "post_mlp_norm",
                "cosine",
                "sine",
            )
        ),
        ("window", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


class _Model(ctypes.Structure):
    """``decoder`` of decoder.h."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                "num_layers",
                "hidden",
                "heads",
                "kv_heads",
                "head_dim",
                "mlp",
                "slots",
                "activation",
            )
        ),
        *((name, ctypes.c_float) for name in ("eps", "attention_scale", "embedding_scale")),
        ("layers", ctypes.POINTER(_Layer)),
        ("embedding", ctypes.c_void_p),
        ("head", WeightStruct),
        ("final_norm", ctypes.c_void_p),
    )


class _Batch(ctypes.Structure):
    """``decoder_batch`` of decoder.h."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("branch_width", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "ids",
                "rows",
                "positions",
                "slots",
                "contexts",
                "branches",
                "branch_counts",
                "wanted",
            )
        ),
        ("num_wanted", ctypes.c_int64),
    )


def unsupported(model: Any) -> str | None:
    """Why ``model`` cannot run on the C forward pass, one line; None if it can."""
    config = model.config.get_text_config()
    if not available():
        return "the C kernels are not there"
    if config.model_type not in _MODEL_TYPES:
        return f"model type {config.model_type} has no C forward pass"
    if model.get_output_embeddings().weight.device.type != "cpu":
        return "the model is not on the CPU"
    if model.get_output_embeddings().weight.dtype != torch.bfloat16:
        return "the weights are not bfloat16"
    if _activation(config) not in _ACTIVATIONS:
        return f"activation {_activation(config)} has no C form"
    if getattr(config, "final_logit_softcapping", None) or getattr(config, "attn_logit_softcapping", None):
        return "soft-capped logits have no C form"
    head_dim = model.model.layers[0].self_attn.head_dim
    if head_dim % 16 or config.hidden_size % 8 or config.intermediate_size % 8:
        return "its sizes are not multiples of 8"
    types = {p.get("rope_type", "default") for p in _rope_parameters(config)}
    if not types <= set(_ROPE_TYPES):
        return f"rotary embedding {', '.join(sorted(types))} has no table"
    return None


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in parameters.values()):
        return [value for value in parameters.values() if isinstance(value, dict)]
    return [parameters]


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


class Decoder:
    """One model's weights and keys and values, ready for forward passes in C.

    Weights in bf16 are the model's own storage; "int8" and "int4" make a quantized copy of the matrices
    (the embedding stays as it is). In bf16 values of a token never depend on the other tokens of a pass.

    Raises:
        ValueError: :func:`unsupported` has the reason.
    """

    def __init__(self, model: Any, weight: WeightFormat = "bf16") -> None:
        if (reason := unsupported(model)) is not None:
            raise ValueError(reason)
        self._model = model
        config = model.config.get_text_config()
        self._layer_types = list(
            getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        )
        window = getattr(config, "sliding_window", None)
        if window and not getattr(config, "layer_types", None):
            self._layer_types = ["sliding_attention"] * config.num_hidden_layers
        self._keep: list[Any] = []
        self._linears: dict[int, PackedLinear] = {}
        self._gemma = config.model_type == "gemma3_text"
        self._layers = (_Layer * config.num_hidden_layers)()
        for layer, module, kind in zip(self._layers, model.model.layers, self._layer_types, strict=True):
            self._fill_layer(layer, module, weight)
            layer.window = window if kind == "sliding_attention" and window else 0
        attention = model.model.layers[0].self_attn
        self.num_layers = config.num_hidden_layers
        self.kv_heads = config.num_key_value_heads
        self.head_dim = attention.head_dim
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        struct = self._struct = _Model()
        struct.num_layers, struct.hidden, struct.mlp = (
            self.num_layers,
            config.hidden_size,
            config.intermediate_size,
        )
        struct.heads, struct.kv_heads, struct.head_dim = (
            config.num_attention_heads,
            self.kv_heads,
            self.head_dim,
        )
        struct.activation, struct.eps = _ACTIVATIONS[_activation(config)], config.rms_norm_eps
        struct.attention_scale = attention.scaling
        struct.embedding_scale = config.hidden_size**0.5 if self._gemma else 1.0
        struct.layers = ctypes.cast(self._layers, ctypes.POINTER(_Layer))
        struct.embedding = model.get_input_embeddings().weight.data_ptr()
        self._head = PackedLinear.from_linear(model.get_output_embeddings(), weight)
        self._pruned: list[tuple[torch.Tensor, PackedLinear]] = []
        struct.final_norm = self._norm(model.model.norm)
        self._positions = 0
        self._call = cast(ctypes.CDLL, load().handle).anydraft_decoder_forward

    def _linear(self, module: Any, weight: WeightFormat) -> WeightStruct:
        packed = PackedLinear.from_linear(module, weight)
        self._keep.append(packed)
        return packed.describe()

    def _norm(self, module: Any) -> int:
        values = module.weight.detach().float() + (1.0 if self._gemma else 0.0)
        self._keep.append(values)
        return int(values.data_ptr())

    def _fill_layer(self, layer: _Layer, module: Any, weight: WeightFormat) -> None:
        attention, mlp = module.self_attn, module.mlp
        for name in ("q", "k", "v", "o"):
            setattr(layer, name, self._linear(getattr(attention, f"{name}_proj"), weight))
        for name in ("gate", "up", "down"):
            setattr(layer, name, self._linear(getattr(mlp, f"{name}_proj"), weight))
        layer.attention_norm = self._norm(module.input_layernorm)
        if self._gemma:
            layer.post_attention_norm = self._norm(module.post_attention_layernorm)
            layer.mlp_norm = self._norm(module.pre_feedforward_layernorm)
            layer.post_mlp_norm = self._norm(module.post_feedforward_layernorm)
        else:
            layer.mlp_norm = self._norm(module.post_attention_layernorm)
        if hasattr(attention, "q_norm"):
            layer.q_norm, layer.k_norm = self._norm(attention.q_norm), self._norm(attention.k_norm)

    def _head_of(self, only: torch.Tensor | None) -> PackedLinear:
        """The LM head, or its rows ``only``: kept for the last few such tensors, which are told by identity."""
        if only is None:
            return self._head
        for ids, head in self._pruned:
            if ids is only:
                return head
        head = self._head.select_rows(only)
        self._pruned = [*self._pruned[1 - _MOST_PRUNED :], (only, head)]
        return head

    def bind_cache(self, keys: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        """Use these as keys and values: for each layer bf16 [rows, kv_heads, slots, head_dim]."""
        for layer, k, v in zip(self._layers, keys, values, strict=True):
            layer.keys, layer.values = k.data_ptr(), v.data_ptr()
        self._struct.slots = keys[0].shape[2]

    def _tables(self, positions: int) -> None:
        """Have rotary tables for that many positions at least."""
        if positions <= self._positions:
            return
        self._positions = max(positions, 2 * self._positions, _FIRST_POSITIONS)
        at = torch.arange(self._positions)[None]
        like = torch.zeros(1, 1, 1)
        rotary = self._model.model.rotary_emb
        tables = {}
        for kind in set(self._layer_types):
            both = rotary(like, at, kind) if self._gemma else rotary(like, at)
            tables[kind] = [t[0, :, : self.head_dim // 2].float().contiguous() for t in both]
        self._rotary = tables
        for layer, kind in zip(self._layers, self._layer_types, strict=True):
            layer.cosine, layer.sine = (t.data_ptr() for t in tables[kind])

    def forward(
        self,
        ids: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        contexts: torch.Tensor,
        wanted: torch.Tensor,
        branches: torch.Tensor | None = None,
        branch_counts: torch.Tensor | None = None,
        only: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run n tokens; token t is written to slot ``slots[t]`` of row ``rows[t]`` and sees that row's first
        ``contexts[t]`` slots and the ``branch_counts[t]`` slots of ``branches[t]``.

        Args:
            ids, rows, positions, slots, contexts: int64 [n].
            wanted: int64, indices of the tokens whose logits are wanted.
            branches: int32 [n, W]; branch_counts: int32 [n].
            only: int64 [A], the vocabulary ids whose logits are wanted, always the same tensor for the same ids (its
                rows of the head are copied once); None: all.

        Returns:
            float32 [len(wanted), A or V].
        """
        self._tables(int(positions.max()) + 1)
        head = self._head_of(only)
        self._struct.head = head.describe()
        logits = torch.empty(len(wanted), head.out_features)
        batch = _Batch(
            n=len(ids),
            branch_width=branches.shape[1] if branches is not None else 0,
            ids=ids.data_ptr(),
            rows=rows.data_ptr(),
            positions=positions.data_ptr(),
            slots=slots.data_ptr(),
            contexts=contexts.data_ptr(),
            branches=branches.data_ptr() if branches is not None else None,
            branch_counts=branch_counts.data_ptr() if branch_counts is not None else None,
            wanted=wanted.data_ptr(),
            num_wanted=len(wanted),
        )
        if self._call(
            ctypes.addressof(self._struct),
            ctypes.addressof(batch),
            logits.data_ptr(),
            num_threads(),
        ):
            raise MemoryError(f"no memory for a forward pass of {len(ids)} tokens")
        return logits
