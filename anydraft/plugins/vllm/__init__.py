"""Drafting in vLLM through ``speculative_config={"method": "custom_class", ...}``; patches nothing."""

from anydraft.plugins.vllm.proposer import AnyDraftProposer

__all__ = ["AnyDraftProposer"]
