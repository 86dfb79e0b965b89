"""Weight-only matrix kernels for CPUs: a few activation rows cost one reading of the weights."""

from anydraft.kernels.library import available, unavailable_reason
from anydraft.kernels.linear import PackedLinear, WeightFormat
from anydraft.kernels.memory import settle
from anydraft.kernels.replace import replace_linears
from anydraft.kernels.threads import num_threads, own_threads

__all__ = [
    "PackedLinear",
    "WeightFormat",
    "available",
    "num_threads",
    "own_threads",
    "replace_linears",
    "settle",
    "unavailable_reason",
]
