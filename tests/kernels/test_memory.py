"""What stays resident: the bytes of the weights, and next to nothing beside them."""

import gc
from pathlib import Path

import pytest
import torch

from anydraft.kernels.memory import empty

STATUS = Path("/proc/self/status")
SLACK = 4 << 20

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="the system does not say what is resident")


def resident() -> int:
    """Bytes that are no file's."""
    gc.collect()
    return 1024 * int(STATUS.read_text().split("RssAnon:")[1].split()[0])


@pytest.mark.parametrize("num_bytes", [100 << 10, (2 << 20) - 1, (4 << 20) + 1])
def test_a_tensor_takes_its_own_bytes(num_bytes):
    before = resident()
    kept = [empty((num_bytes,), torch.uint8).fill_(1) for _ in range(20)]
    assert resident() - before < sum(t.nbytes for t in kept) + SLACK
