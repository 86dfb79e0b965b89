"""Weights in 8 and 4 bits, laid out as the kernels read them (see linear.h)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from anydraft.kernels.memory import empty

ROWS_AT_ONCE = 4096  # rows quantized together: bounds the float32 copy that it takes


@dataclass(frozen=True)
class Quantized:
    """A weight matrix [n, k] in the kernels' layout.

    Attributes:
        format: "int8" or "int4".
        k: columns of the matrix; the stored rows are longer.
        codes: int8 [n, k_padded], or uint8 [n, k_padded / 2] with two weights a byte.
        scale: float32 [n] (int8) or float16 [n, groups] (int4).
        minimum: float16 [n, groups] (int4), else None.
    """

    format: str
    k: int
    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None = None

    @property
    def k_padded(self) -> int:
        return self.codes.shape[1] * (1 if self.format == "int8" else 2)

    def rows(self, index: torch.Tensor | slice) -> Quantized:
        """The same matrix with only the given rows."""
        minimum = None if self.minimum is None else self.minimum[index].contiguous()
        return Quantized(
            self.format, self.k, self.codes[index].contiguous(), self.scale[index].contiguous(), minimum
        )

    def dequantize(self) -> torch.Tensor:
        """The matrix, float32 [n, k]."""
        if self.minimum is None:
            return (self.codes.float() * self.scale[:, None])[:, : self.k]
        groups = self.k_padded // 32
        halves = self.codes.view(-1, groups, 16)
        nibbles = torch.cat([halves & 15, halves >> 4], dim=-1).float()
        scale, minimum = (t[:, :groups, None].float() for t in (self.scale, self.minimum))
        return (nibbles * scale + minimum).flatten(1)[:, : self.k]


def quantize(weight: torch.Tensor, weight_format: str) -> Quantized:
    """Quantize [n, k]: int8 with one scale a row, int4 with scale and minimum for every 32 columns.

    Both round to nearest. int4 takes the least and the greatest of a group as its ends, so that weights that
    were stored with 16 levels a group (GGUF's Q4_1) come back as they were.
    """
    with torch.no_grad():
        parts = [_PARTS[weight_format](part) for part in weight.detach().split(ROWS_AT_ONCE)]
        columns = [_joined(column) for column in zip(*parts, strict=True)]
    return Quantized(weight_format, weight.shape[1], *columns)


def _joined(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    whole = empty((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
    return torch.cat(parts, out=whole)


def _int8(part: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values = F.pad(part.float(), (0, -part.shape[1] % 64))
    scale = values.abs().amax(dim=1) / 127
    codes = (values / scale.clamp_min(1e-30)[:, None]).round_().to(torch.int8)
    return codes, scale


def _int4(part: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values = F.pad(part.float(), (0, -part.shape[1] % 64))
    groups = values.view(values.shape[0], -1, 32)
    least, greatest = groups.amin(dim=-1), groups.amax(dim=-1)
    # What is stored is float16; the codes are chosen for the stored numbers.
    minimum, scale = least.half(), ((greatest - least) / 15).half()
    codes = (groups - minimum.float()[..., None]) / scale.float().clamp_min(1e-30)[..., None]
    codes = codes.round_().clamp_(0, 15).to(torch.uint8)
    packed = (codes[..., :16] | codes[..., 16:] << 4).flatten(1)
    pad = (0, -groups.shape[1] % 8)
    return packed, F.pad(scale, pad), F.pad(minimum, pad)


_PARTS = {"int8": _int8, "int4": _int4}
