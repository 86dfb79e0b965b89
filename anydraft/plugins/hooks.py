"""Whether a host has what its plugin stands on, by name and signature."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anydraft.errors import AnyDraftError


class HostError(AnyDraftError):
    """The host engine is of a version, or configured in a way, that the plugin does not support."""


@dataclass(frozen=True)
class Hook:
    """``module.name`` (a class's method as ``Class.method``) and the parameters that are passed to it."""

    module: str
    name: str
    parameters: tuple[str, ...] = ()


def missing(hook: Hook, load: Callable[[str], Any] = importlib.import_module) -> str | None:
    """What ``hook`` lacks in this host, or None."""
    full = f"{hook.module}.{hook.name}"
    try:
        found = load(hook.module)
        for part in hook.name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return f"{full} is missing"
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return f"{full} has no signature"
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    lost = [name for name in hook.parameters if name not in parameters]
    return f"{full} does not take {', '.join(lost)}" if lost else None
