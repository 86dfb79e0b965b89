"""Makes SGLang choose the attention backend that drafts on CPUs, on a processor without AMX."""

from __future__ import annotations


def install() -> None:
    """An ``sglang.srt.plugins`` entry point: without AMX SGLang falls back to a backend that refuses drafts."""
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).install()
