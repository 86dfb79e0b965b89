"""Whether this SGLang has what the plugin stands on: read from its source, as importing it would cost seconds in
each process and may touch the device."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from anydraft.plugins.hooks import Hook, HostError

SUPPORTED = "0.5.23"
"""Version of SGLang that the plugin was tested with."""

_SPEC = "sglang.srt.speculative"

HOOKS = (
    # How an algorithm is known and asked.
    Hook(f"{_SPEC}.spec_registry", "CustomSpecAlgo.__init__", ("name", "factory", "supports_overlap")),
    Hook(f"{_SPEC}.spec_registry", "CustomSpecAlgo.handle_server_args", ("server_args",)),
    Hook(f"{_SPEC}.spec_info", "SpeculativeAlgorithm.create_future_map", ("device", "req_to_token_pool")),
    Hook(
        "sglang.srt.managers.overlap_utils",
        "FutureMap.__init__",
        ("device", "spec_algo", "req_to_token_pool"),
    ),
    Hook("sglang.srt.server_args", "ServerArgs.resolve_once", ("self",)),
    Hook("sglang.srt.plugins.hook_registry", "HookRegistry.register", ("target", "hook", "hook_type")),
    # A draft in the target's slots.
    Hook(f"{_SPEC}.standalone_worker_v2", "StandaloneWorkerV2.__init__", ("server_args", "target_worker")),
    Hook(f"{_SPEC}.standalone_worker_v2", "StandaloneWorkerV2._validate_vocab_compatibility"),
    Hook(f"{_SPEC}.standalone_worker_v2", "StandaloneDraftWorker.init_lm_head", ("self",)),
    Hook(f"{_SPEC}.base_spec_worker", "BaseSpecWorker.alloc_memory_pool", ("memory_pool_config",)),
    Hook(f"{_SPEC}.eagle_worker_v2", "EagleDraftWorker.draft_forward", ("forward_batch",)),
    Hook(
        f"{_SPEC}.eagle_worker_v2",
        "EagleDraftWorker._draft_extend_for_prefill",
        ("batch", "target_hidden_states", "next_token_ids"),
    ),
    # A draft beside SGLang.
    Hook(f"{_SPEC}.ngram_worker", "NGRAMWorker.__init__", ("server_args", "target_worker")),
    Hook(f"{_SPEC}.ngram_worker", "NGRAMWorker._prepare_draft_tokens", ("batch",)),
    Hook(f"{_SPEC}.ngram_worker", "NGRAMWorker._update_ngram_corpus", ("batch",)),
    Hook(f"{_SPEC}.ngram_worker", "NGRAMWorker.forward_batch_generation", ("batch", "on_publish")),
    Hook(f"{_SPEC}.ngram_worker", "NGRAMWorker.alloc_memory_pool"),
)


def check_hooks(hooks: Sequence[Hook], version: str) -> None:
    """Refuse an SGLang in which a hook is missing or takes other parameters.

    Raises:
        HostError: naming what is missing, this version and the one that is supported.
    """
    sources = {module: _source(module) for module in dict.fromkeys(hook.module for hook in hooks)}
    reasons = [reason for hook in hooks if (reason := _missing(hook, sources[hook.module])) is not None]
    if reasons:
        raise HostError(
            f"this SGLang ({version}) is not one that AnyDraft knows: {'; '.join(reasons)}. Supported is SGLang "
            f"{SUPPORTED}; install sglang=={SUPPORTED}"
        )


def _missing(hook: Hook, source: ast.Module | None) -> str | None:
    full = f"{hook.module}.{hook.name}"
    found: ast.AST | None = source
    for part in hook.name.split("."):
        found = _defined(found, part)
    if not isinstance(found, ast.FunctionDef):
        return f"{full} is missing"
    arguments = found.args
    if arguments.kwarg is not None:
        return None
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    lost = [name for name in hook.parameters if name not in names]
    return f"{full} does not take {', '.join(lost)}" if lost else None


def _defined(parent: ast.AST | None, name: str) -> ast.AST | None:
    body = getattr(parent, "body", ())
    return next((n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == name), None)


def _source(module: str) -> ast.Module | None:
    """The syntax tree of a module that is not imported (its parent packages are)."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # no such package, or one without a spec
        return None
    if spec is None or spec.origin is None:
        return None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
