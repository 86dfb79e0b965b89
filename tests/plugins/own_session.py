"""A host's engine in a process of its own, which ends with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "result: "
"""Begins the line that holds what the process found, as JSON: hosts write to stdout as well."""


class NoResultError(AssertionError):
    """The process did not come to its end."""


def in_own_session(
    command: Sequence[str], environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):  # the host's own processes too
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def result_of(done: subprocess.CompletedProcess[str]) -> Any:
    """What the process found.

    Raises:
        NoResultError: nothing; says what the host did.
    """
    marked = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not marked:
        said = done.stdout + done.stderr
        errors = [line for line in said.splitlines() if "Error" in line]
        raise NoResultError("\n".join(["the host did not come to its end:", *errors, said[-3000:]]))
    return json.loads(marked[0])
