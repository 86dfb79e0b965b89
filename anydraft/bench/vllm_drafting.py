"""Arguments of ``vllm.LLM`` with which it drafts: by its own token-level intersection, or by AnyDraft's plugin."""

from __future__ import annotations

from typing import Any

from anydraft.models.locate import locate


def in_tree_tli(draft: str, num_speculative_tokens: int) -> dict[str, Any]:
    """vLLM's draft model of another vocabulary.

    Args:
        draft: named as for AnyDraft; vLLM is given its folder.

    Raises:
        ModelError: there is no such model.
    """
    return {
        "speculative_config": {
            "method": "draft_model",
            "model": str(locate(draft)),
            "use_heterogeneous_vocab": True,
            "num_speculative_tokens": num_speculative_tokens,
        },
        # With it, drafts of sliding and full layers (Gemma-3) do not start.
        "disable_hybrid_kv_cache_manager": True,
    }


def with_plugin(draft: str | None, num_speculative_tokens: int, **options: Any) -> dict[str, Any]:
    """AnyDraft inside vLLM.

    Args:
        draft: named as for AnyDraft; None for methods that need none.
        options: the plugin's; None: its default.
    """
    given = {name: value for name, value in {"draft": draft, **options}.items() if value is not None}
    return {
        "speculative_config": {
            "method": "custom_class",
            "model": "anydraft.plugins.vllm.AnyDraftProposer",
            "num_speculative_tokens": num_speculative_tokens,
        },
        "additional_config": {"anydraft": given},
    }
