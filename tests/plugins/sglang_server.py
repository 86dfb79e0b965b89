"""SGLang's stock launcher in a process of its own, with tiny models on a CPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import IO, Any

from tests import tiny
from tests.plugins.sglang_cpu import ENGINE, environment

MAX_TOKENS = 24
START_LIMIT = 300.0
"""Seconds until a server answers; some twenty on an idle machine."""

Completions = list[tuple[str, list[int]]]


def flags(**given: Any) -> list[str]:
    return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@contextlib.contextmanager
def server(variables: dict[str, str], **given: Any) -> Iterator[str]:
    """The address of a server that answers; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", "--skip-server-warmup"]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, *flags(**(ENGINE | given), host="127.0.0.1", port=port)],
            env=environment() | variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + START_LIMIT
            while not _answers(address):
                assert process.poll() is None, _end_of(log)
                assert time.monotonic() < until, "the server does not answer"
                time.sleep(0.2)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-3000:].decode(errors="replace")


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/v1/models", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def completions(address: str) -> Completions:
    """Text and ids that the server writes to :func:`prompts`, all in one request."""
    given = {
        "model": "default",
        "prompt": prompts(),
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(given).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        choices = json.load(response)["choices"]
    return [(choice["text"], choice["token_ids"]) for choice in sorted(choices, key=lambda c: c["index"])]


def prompts() -> list[list[int]]:
    """Eight of different lengths, two of which share a prefix."""
    texts = [*tiny.CORPUS[:3], tiny.CORPUS[0] + tiny.CORPUS[1], "The quick", "xy", "größer", "1 + 2 ="]
    return [tiny.byte_level().encode(text)[:90] for text in texts]
