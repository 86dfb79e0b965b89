"""Weight-only matrix kernels for CPUs: a few activation rows cost one reading of the weights."""

from anydraft.kernels.library import available, unavailable_reason
from anydraft.kernels.linear import PackedLinear, WeightFormat
from anydraft.kernels.replace import replace_linears

__all__ = ["PackedLinear", "WeightFormat", "available", "replace_linears", "unavailable_reason"]
