"""How a refusal reaches the user: in one line at SGLang's command line, as an exception in Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from anydraft.errors import AnyDraftError

COMMANDS = ("sglang", "launch_server.py")
"""What a process of SGLang's command line was started as."""


def refuse(error: AnyDraftError) -> NoReturn:
    """End SGLang's command with the error's line; raise it for any other caller."""
    if Path(sys.argv[0]).name in COMMANDS:
        raise SystemExit(f"error: {error}")
    raise error
