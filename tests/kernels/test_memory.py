"""What stays resident: the bytes of the weights, and next to nothing beside them."""

import ctypes
import gc
from pathlib import Path

import pytest
import torch

from anydraft.kernels.memory import empty
from anydraft.kernels.quantize import quantize

STATUS = Path("/proc/self/status")
SLACK = 4 << 20

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="the system does not say what is resident")


@pytest.fixture(autouse=True)
def no_holes():
    """In the heap, where a test before may have left some that would take what this one leaves."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def resident() -> int:
    """Bytes that are no file's."""
    gc.collect()
    return 1024 * int(STATUS.read_text().split("RssAnon:")[1].split()[0])


@pytest.mark.parametrize("num_bytes", [100 << 10, (2 << 20) - 1, (4 << 20) + 1])
def test_a_tensor_takes_its_own_bytes(num_bytes):
    before = resident()
    kept = [empty((num_bytes,), torch.uint8).fill_(1) for _ in range(20)]
    assert resident() - before < sum(t.nbytes for t in kept) + SLACK


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_quantizing_leaves_nothing_but_its_result(weight_format):
    # Of sizes whose temporaries malloc would serve from its heap, once it has seen one freed.
    weights = [torch.randn(size, dtype=torch.bfloat16) for size in [(4864, 896), (896, 4864)]]
    quantize(torch.ones(4, 64), weight_format)
    before = resident()
    kept = [quantize(weight, weight_format) for _ in range(6) for weight in weights]
    own = sum(t.nbytes for q in kept for t in (q.codes, q.scale, q.minimum) if t is not None)
    assert resident() - before < own + SLACK
