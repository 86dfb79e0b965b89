"""Time the matrix products of one forward pass: torch's operators beside the package's C kernels.

Only the products are timed (attention and the rest are left out). Each shape is run over enough distinct
matrices to exceed the caches, every product is the median of its rounds, and a pass is the sum over layers. The
last column is a prompt of 512 tokens, whose head runs for the last token only.

    python benchmarks/linear_kernels.py [--models NAME ...] [--rows 1 4 6 8 512] [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from anydraft.kernels import PackedLinear, available, unavailable_reason

CACHE_BYTES = 160e6  # distinct weights of one shape
PROMPT_ROWS = 64  # from so many rows on, the head runs for one row only


@dataclass(frozen=True)
class Model:
    """Output and input features of a layer's matrices, with how many of them a pass reads."""

    name: str
    layers: int
    matrices: tuple[tuple[int, int, int], ...]  # outputs, inputs, times a layer
    head: tuple[int, int]

    def products(self) -> list[tuple[int, int, int, bool]]:
        """Outputs, inputs, times a pass, whether it is the head."""
        inner = [(n, k, times * self.layers, False) for n, k, times in self.matrices]
        return [*inner, (*self.head, 1, True)]


MODELS = [
    Model("SmolLM2-135M", 30, ((576, 576, 2), (192, 576, 2), (1536, 576, 2), (576, 1536, 1)), (49152, 576)),
    Model(
        "Gemma-3-270M",
        18,
        ((1024, 640, 1), (256, 640, 2), (640, 1024, 1), (2048, 640, 2), (640, 2048, 1)),
        (262144, 640),
    ),
    Model(
        "Qwen2.5-1.5B",
        28,
        ((1536, 1536, 2), (256, 1536, 2), (8960, 1536, 2), (1536, 8960, 1)),
        (151936, 1536),
    ),
]


@dataclass(frozen=True)
class Contender:
    name: str
    bytes_per_weight: float
    dtype: torch.dtype
    make: Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]


def _torch(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.linear(x, weight)


def _ours(weight_format: str) -> Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    def make(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        linear = nn.Linear(1, 1, bias=False)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        return PackedLinear.from_linear(linear, weight_format)

    return make


CONTENDERS = [
    Contender("torch float32", 4, torch.float32, lambda w: _torch(w.float())),
    Contender("torch bf16", 2, torch.bfloat16, lambda w: _torch(w.clone())),
    Contender("ours bf16", 2, torch.bfloat16, lambda w: _ours("bf16")(w.clone())),
    Contender("ours int8", 1, torch.bfloat16, _ours("int8")),
    Contender("ours int4", 0.625, torch.bfloat16, _ours("int4")),
]


def product_seconds(n: int, k: int, times: int, rows: int, contender: Contender, rounds: int) -> float:
    """Seconds of one product [rows, k] x [n, k]^T."""
    copies = max(1, min(times, int(CACHE_BYTES / (n * k * contender.bytes_per_weight))))
    weight = (torch.randn(n, k) / k**0.5).bfloat16()
    products = [contender.make(weight) for _ in range(copies)]
    x = torch.randn(rows, k).to(contender.dtype)
    seconds = []
    for _ in range(1 + (rounds if rows < PROMPT_ROWS else 1)):
        start = time.perf_counter()
        for product in products if rows < PROMPT_ROWS else products[:1]:
            product(x)
        seconds.append((time.perf_counter() - start) / (copies if rows < PROMPT_ROWS else 1))
    return statistics.median(seconds[1:])


def pass_cell(model: Model, rows: int, contender: Contender, rounds: int) -> str:
    seconds = read = 0.0
    for n, k, times, is_head in model.products():
        effective = 1 if is_head and rows >= PROMPT_ROWS else rows
        seconds += times * product_seconds(n, k, times, effective, contender, rounds)
        read += times * n * k * contender.bytes_per_weight
    rate = f" ({read / seconds / 1e9:.0f} GB/s)" if rows < PROMPT_ROWS else ""
    return f"{seconds * 1e3:.1f}{rate}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [model.name for model in MODELS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 6, 8, 512])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not available():
        parser.exit(1, f"no kernels to measure: {unavailable_reason()}\n")

    capability = torch.backends.cpu.get_cpu_capability()
    print(
        f"{os.cpu_count()} cores, {platform.machine()} {capability}, CPython {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; milliseconds a pass (weights read a second)\n"
    )
    print("| model | weights | " + " | ".join(f"{rows} rows" for rows in options.rows) + " |")
    print("|---" * (2 + len(options.rows)) + "|")
    with torch.inference_mode():
        for model in MODELS:
            for contender in CONTENDERS if model.name in options.models else ():
                cells = [pass_cell(model, rows, contender, options.rounds) for rows in options.rows]
                print(f"| {model.name} | {contender.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
