"""Starts SGLang's launcher many times, each in a fork of a process that has imported it: an import takes seconds.

python launch_sglang.py '[{"arguments": [...], "environment": {...}}, ...]'

Prints a line of JSON: for each launch its exit code (null: it ran past the limit) and what it wrote.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MARK = "result: "
LIMIT = 120.0
"""Seconds for one launch."""


def main() -> None:
    import sglang.srt.entrypoints.http_server  # noqa: F401  what every launch imports

    import anydraft.plugins.sglang.algorithms  # noqa: F401

    found = [launch(**given) for given in json.loads(sys.argv[1])]
    sys.stdout.write(f"\n{MARK}{json.dumps(found)}\n")


def launch(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile() as file:
        child = os.fork()
        if not child:
            os.setsid()
            os.environ.update(environment)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.argv = ["sglang.launch_server", *arguments]
            code = run()
            sys.stdout.flush()
            os._exit(code)
        code = wait(child)
        return {"code": code, "output": Path(file.name).read_text()}


def run() -> int:
    """The launcher as ``python -m`` runs it; its exit code, after what an interpreter writes at its end."""
    try:
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def wait(child: int) -> int | None:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
