"""The page: a chat whose tokens show where they came from, and the same view of one finished run.

One HTML document each, with everything in it: it loads nothing from anywhere, and its content security policy
allows nothing but its own style and script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def chat_page() -> str:
    """The document that the server shows at /."""
    return _document("chat.html", ["view.js", "chat.js"])


def trace_page(run: Mapping[str, Any]) -> str:
    """A finished run as a document of its own.

    Args:
        run: {"target", "draft", "prompt", "text", "tokens_per_second", "steps": [[{"text", "source"}, ...], ...],
            "usage", "metrics"}: the report of ``anydraft run --json`` and the pieces of its text, step by step.
    """
    # "<" never appears in the data, so nothing in a text can end the element or begin a comment.
    data = json.dumps(run, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    page = _document("trace.html", ["view.js", "trace.js"]).replace("<!-- run -->", data)
    policy = content_security_policy(page)
    return page.replace("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">')


def content_security_policy(page: str) -> str:
    """Allows the inline style and script of ``page`` and calls to its own server."""
    style = " ".join(_hashes(page, "style"))
    script = " ".join(_hashes(page, "script"))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    )


def _document(name: str, scripts: list[str]) -> str:
    here = files(__name__)
    script = "\n".join((here / each).read_text(encoding="utf-8") for each in scripts)
    page = (here / name).read_text(encoding="utf-8")
    style = (here / "style.css").read_text(encoding="utf-8")
    return page.replace("/* style */", style).replace("/* script */", script)


def _hashes(page: str, element: str) -> list[str]:
    contents = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
    return [f"'sha256-{base64.b64encode(hashlib.sha256(c.encode()).digest()).decode()}'" for c in contents]
