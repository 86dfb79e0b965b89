"""Quantization: error bounds, padding, exact return of weights that had 16 levels a group."""

import pytest
import torch

from anydraft.kernels.quantize import quantize


@pytest.mark.parametrize("k", [1, 31, 32, 63, 64, 65, 576, 1000])
def test_int8_is_within_half_a_step(k):
    weight = torch.randn(9, k)
    error = (quantize(weight, "int8").dequantize() - weight).abs()
    assert (error <= weight.abs().amax(dim=1, keepdim=True) / 254 * 1.001).all()


@pytest.mark.parametrize("k", [1, 31, 32, 63, 64, 65, 576, 1000])
def test_int4_is_within_half_a_step(k):
    weight = torch.randn(9, k)
    restored = quantize(weight, "int4").dequantize()
    assert restored.shape == weight.shape
    for start in range(0, k, 32):
        group = weight[:, start : start + 32]
        if group.shape[1] < 32:
            group = torch.cat([group, torch.zeros(9, 1)], dim=1)
        step = (group.amax(dim=1) - group.amin(dim=1)) / 15
        error = (restored - weight)[:, start : start + 32].abs().amax(dim=1)
        # half a step, and the float16 rounding of scale and minimum
        assert (error <= 0.5 * step + 2e-3 * group.abs().amax(dim=1)).all()


def test_int4_returns_sixteen_levels_as_they_were():
    levels = torch.randint(0, 16, (8, 10, 32)).float()
    levels[..., 0], levels[..., 1] = 0, 15
    scale = (0.1 + torch.rand(8, 10, 1)).half().float()
    minimum = -8 * scale
    weight = (levels * scale + minimum).bfloat16().flatten(1)
    codes = quantize(weight, "int4").codes.view(8, 10, 16)
    assert torch.equal(torch.cat([codes & 15, codes >> 4], dim=-1).float(), levels)


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_rows_are_quantized_alone(weight_format):
    weight = torch.randn(5000, 40)
    whole, part = quantize(weight, weight_format), quantize(weight[4097:4099], weight_format)
    assert torch.equal(whole.rows(slice(4097, 4099)).codes, part.codes)
    assert torch.equal(whole.rows(torch.tensor([4097, 4098])).dequantize(), part.dequantize())
    assert quantize(torch.zeros(2, 40), weight_format).dequantize().eq(0).all()
