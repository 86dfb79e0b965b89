"""The thread pool: several callers at once, a forked child, more threads than cores."""

import os
import threading

import pytest
import torch
from torch import nn

from anydraft.kernels import PackedLinear, num_threads, own_threads


@pytest.fixture
def packed():
    torch.manual_seed(0)
    return PackedLinear.from_linear(nn.Linear(200, 509, dtype=torch.bfloat16))


def test_callers_in_several_threads(packed):
    x = torch.randn(7, 200)
    expected = packed(x)
    wrong: list[int] = []

    def call(rows: int) -> None:
        with torch.inference_mode():
            for _ in range(300):
                if not torch.equal(packed(x[:rows]), expected[:rows]):
                    wrong.append(rows)

    threads = [threading.Thread(target=call, args=(rows,)) for rows in (1, 4, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_has_its_own_threads(packed):
    x = torch.randn(3, 200)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = packed(x)
        child = os.fork()
        if child == 0:
            same = torch.equal(packed(x), expected)
            os._exit(0 if same and len(os.listdir("/proc/self/task")) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_more_threads_than_cores(packed):
    x = torch.randn(5, 200)
    expected = packed(x)
    before = torch.get_num_threads()
    try:
        for count in (1, 16, 3):
            torch.set_num_threads(count)
            assert torch.equal(packed(x), expected)
    finally:
        torch.set_num_threads(before)


def test_own_threads_leaves_the_cores_to_the_kernels(packed):
    x = torch.randn(5, 200)
    expected = packed(x)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with own_threads():
            assert (torch.get_num_threads(), num_threads()) == (1, 2)
            with own_threads():
                assert (torch.get_num_threads(), num_threads()) == (1, 2)
            assert (torch.get_num_threads(), num_threads()) == (1, 2)
            assert torch.equal(packed(x), expected)
        assert (torch.get_num_threads(), num_threads()) == (2, 2)
    finally:
        torch.set_num_threads(before)
