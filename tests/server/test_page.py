"""The page as a document: everything in it, nothing from elsewhere, text only ever as text.

What it does in a browser is checked by scripts/page_check.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from anydraft.server.page import chat_page, content_security_policy, trace_page
from tests.server.running import Running

NASTY = "</script><script>alert(1)</script><!-- run --><img src=x onerror=alert(1)> \u2028 /* script */ <!-- policy -->"
RUN: dict[str, Any] = {
    "target": NASTY,
    "draft": None,
    "method": "slem",
    "prompt": NASTY,
    "text": NASTY,
    "tokens_per_second": 3.5,
    "steps": [[{"text": NASTY, "source": "accepted"}], [{"text": "b", "source": NASTY}]],
    "usage": {"completion_tokens": 2},
    "metrics": {"speculative_decoding": {"acceptance_length": 1.0, "num_steps": 2}},
}


class Document(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    def ids(self) -> set[str]:
        return {attributes["id"] or "" for _, attributes in self.tags if "id" in attributes}


@pytest.fixture(params=["chat", "trace"])
def page(request: pytest.FixtureRequest) -> str:
    return chat_page() if request.param == "chat" else trace_page(RUN)


def test_nothing_comes_from_elsewhere(page: str) -> None:
    outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", page)) - {"http://www.w3.org"}
    assert not outside
    for tag, attributes in Document(page).tags:
        assert tag not in ("img", "iframe", "object", "embed", "audio", "video")
        assert "src" not in attributes
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", "data:"))
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_text_never_becomes_markup(page: str) -> None:
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert forbidden not in page


def test_the_policy_allows_this_style_and_script_only(page: str) -> None:
    policy = content_security_policy(page)
    assert policy.startswith("default-src 'none'")
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_scripts_find_their_elements(page: str) -> None:
    document = Document(page)
    wanted = set(re.findall(r"byId\(\"([\w-]+)\"\)", page))
    assert wanted
    assert wanted <= document.ids()


def test_what_assistive_technology_needs(page: str) -> None:
    document = Document(page)
    assert dict(document.tags)["html"]["lang"] == "en"
    labels = {attributes.get("for") for tag, attributes in document.tags if tag == "label"}
    text = chat_page()
    for tag, attributes in document.tags:
        if tag in ("input", "select", "textarea"):
            inside = re.search(rf"<label[^>]*>(?:(?!</label>).)*id=\"{attributes['id']}\"", text, re.DOTALL)
            assert attributes["id"] in labels or inside, attributes["id"]
    for scheme in ("prefers-color-scheme: dark", "prefers-reduced-motion", "max-width", "focus-visible"):
        assert scheme in page


def test_the_chat_announces_itself() -> None:
    tags = Document(chat_page()).tags
    assert any(a.get("aria-live") == "polite" for _, a in tags)
    assert any(a.get("role") == "alert" for _, a in tags)


def test_a_trace_holds_its_run_whatever_its_text() -> None:
    document = Document(trace_page(RUN))
    assert len(document.scripts) == 2, "no text of the run opens an element"
    assert json.loads(document.scripts[0]) == RUN
    assert sum(tag == "meta" and "http-equiv" in a for tag, a in document.tags) == 1
    with pytest.raises(ValueError, match="JSON"):
        trace_page({**RUN, "tokens_per_second": float("nan")})


def test_the_server_shows_the_page(server: Running) -> None:
    answer = server.http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"] == content_security_policy(answer.text)
    assert answer.text == chat_page()
    for name in ("Send", "Stop", "Method", "New chat", "Where each token came from"):
        assert name in answer.text
