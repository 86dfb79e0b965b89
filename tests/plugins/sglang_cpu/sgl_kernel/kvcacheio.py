"""Copies between host and device: not needed on a CPU, but imported by name."""

from sgl_kernel import __getattr__ as __getattr__
