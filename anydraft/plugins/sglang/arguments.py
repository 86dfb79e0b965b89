"""Checks and completes SGLang's arguments for our algorithms; knows nothing of SGLang but their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anydraft.errors import UsageError
from anydraft.models.load import load_config
from anydraft.models.locate import locate
from anydraft.plugins.hooks import HostError

TLI = "ANYDRAFT_TLI"
SLEM = "ANYDRAFT_SLEM"
NUM_STEPS = 4
"""Draft tokens a step where none are asked for."""
MAX_RUNNING_REQUESTS = 48
"""SGLang's own default with drafts."""


def is_ours(algorithm: str | None) -> bool:
    """Whether SGLang's ``--speculative-algorithm`` is one of AnyDraft's, in any case of letters.

    Raises:
        UsageError: it is meant to be; SGLang would look for the draft first, and end with a traceback.
    """
    name = (algorithm or "").upper()
    if name in (TLI, SLEM):
        return True
    if name.startswith("ANYDRAFT"):
        raise UsageError(f"--speculative-algorithm {algorithm} is unknown; choose {SLEM} or {TLI}")
    return False


def find_draft(args: Any) -> None:
    """Put the draft's folder in place of a packaged name or a GGUF file, and see that it has a config, before SGLang
    reads that and ends with a traceback.

    Args:
        args: see :func:`complete`.

    Raises:
        ModelError: there is no such draft, it cannot be fetched or converted, or it is of a kind that cannot draft.
    """
    if given := args.speculative_draft_model_path:
        folder = locate(given)
        found = str(folder)
        load_config(found, given, local=isinstance(folder, Path))
        if found != given:  # SGLang resolves its arguments once and then seals them, but asks again
            args.speculative_draft_model_path = found


def complete(args: Any, algorithm: str) -> None:
    """Check the arguments of ``algorithm`` and fill in those that were not given.

    Args:
        args: SGLang's server arguments, or anything that has them as attributes; written to.

    Raises:
        UsageError: one of them makes no sense; the message names it and what to give.
        HostError: it asks for what is not supported.
    """
    if not args.speculative_draft_model_path:
        raise UsageError(f"{algorithm} needs a draft model: give --speculative-draft-model-path")
    if args.speculative_eagle_topk not in (None, 1):
        raise UsageError(
            f"--speculative-eagle-topk {args.speculative_eagle_topk} is not supported: {algorithm} drafts chains; "
            "leave it out or give 1"
        )
    steps = _num_steps(args)
    _refuse_lossy(args, algorithm)
    _refuse_parallel(args, algorithm)
    args.speculative_num_steps = steps
    args.speculative_eagle_topk = 1
    args.speculative_num_draft_tokens = steps + 1
    if args.max_running_requests is None:
        args.max_running_requests = MAX_RUNNING_REQUESTS
    args.enable_mixed_chunk = False


def refuse_backend(args: Any, has_amx: bool) -> None:
    """Refuse SGLang's attention in plain torch, which cannot verify drafts and ends the server at the first request.

    Args:
        args: as for :func:`complete`.
        has_amx: whether the processor has AMX, without which SGLang has no other attention on CPUs.

    Raises:
        HostError: it is asked for, or would be taken.
    """
    if args.device == "cpu" and not has_amx:
        raise HostError(
            "SGLang cannot verify drafts on this CPU: without AMX its attention is torch_native; leave out "
            "--speculative-algorithm, or use vLLM or anydraft serve"
        )
    if args.attention_backend == "torch_native":
        raise HostError(
            "--attention-backend torch_native cannot verify drafts; give another one, on CPUs intel_amx"
        )


def _num_steps(args: Any) -> int:
    """Draft tokens a step; SGLang counts the token that they follow among ``speculative_num_draft_tokens``."""
    steps, tokens = args.speculative_num_steps, args.speculative_num_draft_tokens
    if steps is None and tokens is not None and tokens < 2:
        raise UsageError(
            f"--speculative-num-draft-tokens {tokens} must be at least 2, one more than the draft tokens of a step; to "
            "serve without drafts leave out --speculative-algorithm"
        )
    if steps is None:
        steps = NUM_STEPS if tokens is None else tokens - 1
    elif tokens is not None and tokens != steps + 1:
        raise UsageError(
            f"--speculative-num-draft-tokens {tokens} must be --speculative-num-steps + 1 = {steps + 1} for a chain "
            "of drafts; leave one of them out"
        )
    if steps < 1:
        raise UsageError(
            f"--speculative-num-steps {steps} must be at least 1; to serve without drafts leave out "
            "--speculative-algorithm"
        )
    return int(steps)


def _refuse_lossy(args: Any, algorithm: str) -> None:
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if getattr(args, name) != 1.0:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} {getattr(args, name)} accepts tokens that the target would not have chosen; leave it out"
            )
    for name in ("speculative_use_rejection_sampling", "speculative_use_block_verification"):
        if getattr(args, name):
            flag = name.replace("_", "-")
            raise HostError(f"--{flag} is SGLang's for EAGLE only, not for {algorithm}; leave it out")
    if args.speculative_token_map is not None:
        raise UsageError(
            f"--speculative-token-map does not go with {algorithm}, which finds the common tokens itself; leave it out"
        )


def _refuse_parallel(args: Any, algorithm: str) -> None:
    for name in ("tp_size", "pp_size"):
        if getattr(args, name) > 1:
            flag = name.replace("_", "-")
            raise HostError(
                f"--{flag} {getattr(args, name)} is not supported by {algorithm} yet; use 1, with --dp-size for more "
                "devices"
            )
    if args.enable_dp_attention:
        raise HostError(f"--enable-dp-attention is not supported by {algorithm}; leave it out")
