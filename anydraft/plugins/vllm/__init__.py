"""Drafting in vLLM through ``speculative_config={"method": "custom_class", ...}``.

Nothing of vLLM is replaced but a function that is wrong on CPUs; see :mod:`anydraft.plugins.vllm.sampling`.
"""

from anydraft.plugins.vllm.proposer import AnyDraftProposer

__all__ = ["AnyDraftProposer"]
