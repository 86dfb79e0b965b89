"""Configurations that are each measured in a process of their own and kept in a file. Used by the hosts' benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MARK = "result: "  # the hosts' processes write to stdout as well


def read(path: Path) -> dict[str, Any]:
    """What was measured so far, by configuration."""
    return json.loads(path.read_text()) if path.exists() else {}


def tell(result: Any) -> None:
    """Give ``result`` to the process that called :func:`in_process`."""
    print("\n" + _MARK + json.dumps(result), flush=True)


def in_process(script: str, name: str, environment: Mapping[str, str]) -> Any:
    """What ``script`` tells when it is run with this process's arguments and ``--measure name``: a fresh process, so
    that nothing of one configuration is left to the next."""
    command = [sys.executable, script, *sys.argv[1:], "--measure", name]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines()
    return next(json.loads(x.removeprefix(_MARK)) for x in lines if x.startswith(_MARK))
