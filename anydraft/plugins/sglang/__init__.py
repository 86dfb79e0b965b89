"""Drafting in SGLang: the algorithms ``ANYDRAFT_TLI`` and ``ANYDRAFT_SLEM``; by what SGLang offers plugins.

SGLang loads :func:`register` in each of its processes by the entry point group ``sglang.srt.plugins``.
"""

from anydraft.plugins.sglang.registration import register

__all__ = ["register"]
