"""Who has the cores: the kernels' threads or torch's.

After an operator that ran in several threads, torch's OpenMP workers keep spinning on their cores for some
milliseconds, and a kernel called then has to share them: on two cores it takes 1.5 times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_local = threading.local()


def num_threads() -> int:
    """Threads that the kernels use: ``torch.get_num_threads()``, also within :func:`own_threads`."""
    return int(getattr(_local, "count", 0)) or torch.get_num_threads()


@contextmanager
def own_threads() -> Iterator[None]:
    """Give the cores to the kernels: torch's own operators run in the calling thread meanwhile.

    For loops whose work is in the kernels, with small torch operators (an argmax, a softmax) between them.
    """
    before, outer = torch.get_num_threads(), getattr(_local, "count", 0)
    _local.count = outer or before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _local.count = outer
