"""Speculation inside Transformers' ``generate``, for those who stay there."""

from anydraft.hf.speculative import Speculative, speculative

__all__ = ["Speculative", "speculative"]
