"""A torchvision whose every name exists and does nothing.

SGLang and Transformers import it for images; PyPI's wheel is built for CUDA and does not load beside a CPU torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

__path__: list[str] = []
__version__ = "0.0.0"


class Named(type):
    """A class that has any attribute, a class like it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, (), {})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Named(name, (), {})


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``torchvision.anything.at.all``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("torchvision."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = __getattr__


sys.meta_path.append(Submodules())
