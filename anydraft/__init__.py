"""AnyDraft: lossless speculative decoding with any draft model for any target model.

The public names are imported on first use, so that ``import anydraft`` and the command line start
without loading torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from anydraft._version import __version__

if TYPE_CHECKING:
    from anydraft.engine import Engine
    from anydraft.rules.params import SamplingParams

_LAZY = {
    "Engine": "anydraft.engine",
    "SamplingParams": "anydraft.rules.params",
}

__all__ = ["Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'anydraft' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
