"""Requests, the step loop, and the engine that users call."""

from anydraft.engine.engine import Engine
from anydraft.engine.outputs import Delta, GenerationResult, RequestStats

__all__ = ["Delta", "Engine", "GenerationResult", "RequestStats"]
