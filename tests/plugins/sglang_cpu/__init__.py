"""SGLang on a CPU for tests: put this folder on ``PYTHONPATH``; :func:`environment` has what else it needs."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent

ENGINE = {
    "device": "cpu",
    "attention_backend": "intel_amx",
    "dtype": "float32",
    "mem_fraction_static": 0.9,
    "max_total_tokens": 8192,
    "max_running_requests": 8,
    "context_length": 512,
    "log_level": "error",
}
"""Arguments of an engine: exact arithmetic, and the one attention backend that takes drafts on CPUs."""


def environment() -> dict[str, str]:
    """Variables of a process that runs such an engine."""
    paths = [str(FOLDER), os.environ.get("PYTHONPATH", "")]
    defaults = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    needed = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    return defaults | dict(os.environ) | needed
