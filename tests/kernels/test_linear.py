"""The kernels against float64, and the invariance that makes a verified block equal single steps bit by bit."""

import pytest
import torch
from torch import nn

from anydraft.errors import UsageError
from anydraft.kernels import PackedLinear, settle
from anydraft.kernels.library import load

FORMATS = ("bf16", "int8", "int4")
WIDE_ROWS = 32
"""From so many rows on AVX-512 widens int8 weights to bf16, and rounds activations like it (linear.h)."""
SHAPES = [(1, 1), (7, 5), (12, 8), (13, 16), (5, 17), (100, 40), (101, 64), (37, 100), (256, 576), (48, 1536)]


@pytest.fixture(params=[2, 1, 0], ids=["avx512", "avx2", "portable"])
def kernels(request):
    yield load().select(request.param)
    load().select()


def layer(n: int, k: int, weight_format: str = "bf16", *, bias: bool = True, seed: int = 0) -> PackedLinear:
    torch.manual_seed(seed)
    return PackedLinear.from_linear(nn.Linear(k, n, bias=bias, dtype=torch.bfloat16), weight_format)


def widened(weight_format: str, rows: int, kernels: str) -> bool:
    return kernels == "avx512" and weight_format == "int8" and rows >= WIDE_ROWS


def exact(packed: PackedLinear, x: torch.Tensor, kernels: str) -> torch.Tensor:
    in_bf16 = kernels == "avx512" and packed.weight_format == "bf16"
    if in_bf16 or widened(packed.weight_format, len(x), kernels):
        x = x.bfloat16()
    weight = packed.weight if packed.weight_format == "bf16" else packed.quantized().dequantize()
    y = x.double() @ weight.double().T
    return y if packed.bias_f32 is None else y + packed.bias_f32.double()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_values(kernels, n, k, dtype, weight_format):
    for bias in (True, False):
        packed = layer(n, k, weight_format, bias=bias)
        x = torch.randn(40, k).to(dtype)
        for rows in (*range(1, 18), 40):
            expected = exact(packed, x[:rows], kernels)
            # float32: rounding of the sum, and of activations to 16 bits; bf16: rounding of the output
            tolerance = (2e-4 if dtype == torch.float32 else 2**-8) * (1 + expected.abs())
            y = packed(x[:rows])
            assert y.dtype == dtype
            assert ((y.double() - expected).abs() <= tolerance).all()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(101, 100), (256, 576), (30, 4096)])
def test_a_row_does_not_depend_on_its_batch(kernels, n, k, weight_format):
    packed = layer(n, k, weight_format)
    x = torch.randn(70, k)
    alone, many = torch.cat([packed(row[None]) for row in x]), packed(x)
    for rows in (*range(1, 20), 33, 64, 70):
        expected = many if widened(weight_format, rows, kernels) else alone
        for start in (0, 70 - rows):
            assert torch.equal(packed(x[start : start + rows]), expected[start : start + rows])


@pytest.mark.parametrize(("n", "k"), [(1, 1), (37, 100), (101, 64), (256, 576), (30, 4096)])
def test_int8_has_the_same_bits_with_avx512_as_with_avx2(n, k):
    packed, x = layer(n, k, "int8"), 3 * torch.randn(WIDE_ROWS - 1, k)
    for rows in range(1, WIDE_ROWS):
        values = []
        for level in (2, 1):
            load().select(level)
            values.append(packed(x[:rows]))
        load().select()
        assert torch.equal(*values)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_does_not_depend_on_the_threads(kernels, weight_format):
    packed = layer(1003, 300, weight_format)
    threads = torch.get_num_threads()
    for rows in (1, 5, 300):
        x = torch.randn(rows, 300)
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(packed(x))
        torch.set_num_threads(threads)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("weight_format", FORMATS)
def test_leading_dimensions_and_strides(kernels, weight_format):
    packed = layer(11, 20, weight_format)
    x = torch.randn(20, 3, 2)
    y = packed(x.permute(2, 1, 0))
    assert y.shape == (2, 3, 11)
    assert torch.equal(y[1, 2], packed(x[:, 2, 1]))
    assert torch.equal(packed(torch.randn(4, 40)[:, ::2]).isfinite(), torch.ones(4, 11, dtype=torch.bool))
    assert packed(torch.empty(2, 0, 20)).shape == (2, 0, 11)


def test_bf16_keeps_values_that_are_not_finite(kernels):
    linear = nn.Linear(40, 9, bias=False, dtype=torch.bfloat16)
    packed = PackedLinear.from_linear(linear)
    x = torch.randn(5, 40)
    x[1, 3], x[2, 39], x[3, 17] = float("nan"), float("inf"), -float("inf")
    expected = nn.functional.linear(x, linear.weight.float())
    for y in (packed(x), packed(x.bfloat16()).float()):
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(y.isinf(), expected.isinf())
        assert torch.equal(y[expected.isinf()], expected[expected.isinf()])


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_quantized_rows_with_values_that_are_not_finite_are_nan(kernels, weight_format, bad):
    packed = layer(9, 100, weight_format)
    x = torch.randn(3, 100)
    x[1, 97] = float(bad)
    y = packed(x)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-3, 1e30])
def test_activations_of_any_size(kernels, weight_format, size):
    packed = layer(9, 100, weight_format, bias=False)
    x = torch.randn(3, 100) * size
    torch.testing.assert_close(
        packed(x).double(), exact(packed, x, kernels), rtol=1e-3, atol=size * 1e-3 + 1e-28
    )


def test_a_large_activation_does_not_drown_the_others(kernels):
    packed = layer(9, 128, "int8", bias=False)
    x = torch.randn(1, 128)
    x[0, 0] = 1e4  # in the first 64: the other 64 keep their own scale
    without = x.clone()
    without[0, :64] = 0
    with_only = x.clone()
    with_only[0, 64:] = 0
    rest = packed(without)
    torch.testing.assert_close(packed(x) - packed(with_only), rest, rtol=0, atol=2e-3)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_select_rows(kernels, weight_format):
    packed = layer(50, 40, weight_format)
    ids = torch.tensor([3, 0, 49, 17])
    x = torch.randn(2, 40)
    selected = packed.select_rows(ids)
    assert selected.out_features == 4
    assert torch.equal(selected(x), packed(x)[:, ids])


def test_bf16_shares_the_weight_and_follows_it():
    linear = nn.Linear(16, 3, dtype=torch.bfloat16)
    packed = PackedLinear.from_linear(linear)
    assert packed.weight is linear.weight
    x = torch.randn(1, 16)
    before = packed(x)
    with torch.no_grad():
        linear.weight.mul_(2)
    bias = linear.bias.float()
    torch.testing.assert_close(packed(x) - bias, 2 * (before - bias))
    packed.weight = nn.Parameter(torch.zeros(3, 16, dtype=torch.bfloat16))
    assert torch.equal(packed(x)[0], bias)


def test_wrong_use_is_refused():
    with pytest.raises(UsageError, match="int3"):
        PackedLinear.from_linear(nn.Linear(4, 4), "int3")
    with pytest.raises(UsageError, match="bfloat16"):
        PackedLinear.from_linear(nn.Linear(4, 4))
    packed = layer(4, 4)
    with pytest.raises(UsageError, match="float64"):
        packed(torch.randn(2, 4, dtype=torch.float64))
    with pytest.raises(UsageError, match="4 features"):
        packed(torch.randn(4, 2))


def test_weights_on_large_pages_keep_their_values_and_their_ties():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(1200, 1000), nn.Linear(1000, 1200, bias=False), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    before = [p.clone() for p in module.parameters()]
    settle(module)
    assert module[1].weight is module[0].weight
    assert module[0].weight.data_ptr() % (2 << 20) == 0
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), before, strict=True))
