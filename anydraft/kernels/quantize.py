"""Weights in 8 and 4 bits, laid out as the kernels read them (see linear.h)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from anydraft.kernels.memory import empty

BYTES_AT_ONCE = 4 << 20  # of the float32 copy of the rows that are quantized together


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
    n, k = weight.shape
    k_padded = k + -k % 64
    rows = max(1, min(n, BYTES_AT_ONCE // (4 * k_padded)))
    room, fill = _FORMATS[weight_format]
    columns = room(n, k_padded)
    # Worked on in place: temporaries from malloc would leave holes in the heap that no later one fits into.
    values = empty((rows, k_padded), torch.float32)
    with torch.no_grad():
        for start in range(0, n, rows):
            given = weight[start : start + rows]
            part = values[: len(given)]
            part[:, :k] = given
            part[:, k:] = 0
            fill(part, *(column[start : start + rows] for column in columns))
    return Quantized(weight_format, k, *columns)


def _int8_room(n: int, k_padded: int) -> tuple[torch.Tensor, ...]:
    return empty((n, k_padded), torch.int8), empty((n,), torch.float32)


def _int8(values: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    """Fill the rows of ``codes`` and ``scale``; ``values`` are lost."""
    torch.div(torch.maximum(values.amax(dim=1), -values.amin(dim=1)), 127, out=scale)
    codes.copy_(values.div_(scale.clamp_min(1e-30)[:, None]).round_())


def _int4_room(n: int, k_padded: int) -> tuple[torch.Tensor, ...]:
    groups = k_padded // 32
    ends = [empty((n, groups + -groups % 8), torch.float16).zero_() for _ in range(2)]
    return empty((n, k_padded // 2), torch.uint8), *ends


def _int4(values: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> None:
    """Fill the rows of ``codes``, ``scale`` and ``minimum``; ``values`` are lost."""
    groups = values.view(len(values), -1, 32)
    minimum, scale = (ends[:, : groups.shape[1]] for ends in (minimum, scale))
    least, greatest = groups.amin(dim=-1), groups.amax(dim=-1)
    minimum.copy_(least)
    scale.copy_((greatest - least) / 15)
    # What is stored is float16; the codes are chosen for the stored numbers.
    groups.sub_(minimum.float()[..., None]).div_(scale.float().clamp_min(1e-30)[..., None])
    low, high = groups.round_().clamp_(0, 15).split(16, dim=-1)
    codes.view_as(low).copy_(low.add_(high, alpha=16))


_FORMATS: dict[str, tuple[Callable[[int, int], tuple[torch.Tensor, ...]], Callable[..., None]]] = {
    "int8": (_int8_room, _int8),
    "int4": (_int4_room, _int4),
}
