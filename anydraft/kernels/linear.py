"""``nn.Linear`` for inference on the C kernels."""

from __future__ import annotations

import ctypes
from typing import Literal, cast

import torch
from torch import nn

from anydraft.errors import UsageError
from anydraft.kernels.library import FORMATS, WeightStruct, load
from anydraft.kernels.quantize import Quantized, quantize
from anydraft.kernels.threads import num_threads

WeightFormat = Literal["bf16", "int8", "int4"]


class PackedLinear(nn.Module):
    """``y = x @ weight.T + bias`` with a weight of 16, 8 or 4 bits, accumulated in float32.

    Made by :meth:`from_linear`. x is bfloat16 or float32 of any leading dimensions and y has its dtype. There
    is no gradient. The value of an output row depends on its own input row alone, to the last bit: whatever
    other rows are in the batch, and however many threads.

    With "bf16" the parameter ``weight`` is the original one (same storage; a tied embedding stays tied).
    With "int8" and "int4" activations are rounded to 16 bits with one scale for every 64, and a row with
    a value that is not finite gives NaN. (With "int8" 32 rows or more, as of a prompt that a draft reads, may be
    rounded to bfloat16 instead: their values depend on their own row as well, but are not those of few rows.)
    """

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    bias_f32: torch.Tensor | None

    def __init__(
        self, weight: nn.Parameter | Quantized, bias: torch.Tensor | None, weight_format: WeightFormat
    ) -> None:
        super().__init__()
        self.weight_format = weight_format
        if isinstance(weight, Quantized):
            self.in_features, self.out_features = weight.k, weight.codes.shape[0]
            self.register_buffer("codes", weight.codes, persistent=False)
            self.register_buffer("scale", weight.scale, persistent=False)
            self.register_buffer("minimum", weight.minimum, persistent=False)
        else:
            self.out_features, self.in_features = weight.shape
            self.weight = weight
        self.register_buffer("bias_f32", None if bias is None else bias.detach().float(), persistent=False)
        self._struct = WeightStruct()
        self._address = 0

    @classmethod
    def from_linear(cls, linear: nn.Linear, weight: WeightFormat = "bf16") -> PackedLinear:
        """The same layer on the kernels.

        Raises:
            UsageError: an unknown format, or "bf16" for a weight that is not bfloat16 and on the CPU.
        """
        if weight not in FORMATS:
            raise UsageError(f"weight format {weight!r} is unknown; choose one of {', '.join(FORMATS)}")
        if weight != "bf16":
            return cls(quantize(linear.weight, weight), linear.bias, weight)
        if linear.weight.dtype != torch.bfloat16:
            raise UsageError(
                f"a bf16 kernel was asked for a weight of {linear.weight.dtype}; load the model in bfloat16"
            )
        return cls(cast(nn.Parameter, linear.weight), linear.bias, weight)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, weight={self.weight_format}"
        )

    def quantized(self) -> Quantized:
        """The quantized weight (of "int8" and "int4")."""
        return Quantized(self.weight_format, self.in_features, self.codes, self.scale, self.minimum)

    def select_rows(self, ids: torch.Tensor) -> PackedLinear:
        """A layer that computes only the outputs ``ids`` (int64 [A]), in that order. Copies those rows."""
        bias = None if self.bias_f32 is None else self.bias_f32[ids]
        if self.weight_format == "bf16":
            weight = nn.Parameter(self.weight.detach()[ids].contiguous(), requires_grad=False)
            return PackedLinear(weight, bias, self.weight_format)
        return PackedLinear(self.quantized().rows(ids), bias, self.weight_format)

    def describe(self) -> WeightStruct:
        """The struct that the C code reads; valid while this layer lives and its weight stays where it is."""
        first = cast(torch.Tensor, self.weight) if self.weight_format == "bf16" else self.codes
        if first.data_ptr() != self._address:
            self._fill(first)
        return self._struct

    def _fill(self, first: torch.Tensor) -> None:
        if not first.is_contiguous() or first.device.type != "cpu":
            raise UsageError(
                f"the kernels need a contiguous weight on the CPU, got {first.device}, strides {first.stride()}"
            )
        struct = self._struct
        struct.n, struct.k, struct.format = self.out_features, self.in_features, FORMATS[self.weight_format]
        struct.k_padded = self.in_features if self.weight_format == "bf16" else self.quantized().k_padded
        struct.weight = self._address = first.data_ptr()
        for name, tensor in (("scale", "scale"), ("minimum", "minimum"), ("bias", "bias_f32")):
            value = getattr(self, tensor, None)
            setattr(struct, name, None if value is None else value.data_ptr())
        self._pointer = ctypes.addressof(struct)
        self._call = cast(ctypes.CDLL, load().handle).anydraft_linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_bf16 = x.dtype == torch.bfloat16
        if not is_bf16 and x.dtype != torch.float32:
            raise UsageError(f"the kernels take bfloat16 or float32 activations, got {x.dtype}")
        self.describe()
        if x.shape[-1] != self.in_features:
            raise UsageError(f"this layer takes {self.in_features} features, got {tuple(x.shape)}")
        x = x.contiguous()
        y = torch.empty((*x.shape[:-1], self.out_features), dtype=x.dtype)
        rows = x.numel() // self.in_features
        if self._call(self._pointer, x.data_ptr(), y.data_ptr(), rows, is_bf16, num_threads()):
            raise MemoryError(f"no memory for {rows} rows of {self.in_features} activations")
        return y
