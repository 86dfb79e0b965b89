"""Put the kernels into a model."""

from __future__ import annotations

from torch import nn

from anydraft.kernels.library import available
from anydraft.kernels.linear import PackedLinear, WeightFormat


def replace_linears(model: nn.Module, *, weight: WeightFormat = "bf16") -> int:
    """Replace every ``nn.Linear`` inside ``model``, in place, by a :class:`PackedLinear`; returns how many.

    With "bf16" no weight is copied, so a head tied to the embedding stays tied. With "int8" and "int4" each
    original weight is let go as soon as its layer is done; a tied head gets a quantized copy and the embedding
    keeps its own weight. Without kernels (:func:`available`) nothing changes and 0 is returned.

    Raises:
        UsageError: see :meth:`PackedLinear.from_linear`. Layers replaced before it stay replaced.
    """
    if not available():
        return 0
    made: dict[nn.Module, PackedLinear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                if child not in made:
                    made[child] = PackedLinear.from_linear(child, weight).train(child.training)
                setattr(parent, name, made[child])
    return len(made)
