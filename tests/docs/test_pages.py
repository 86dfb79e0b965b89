"""What the pages say of files and commands is true."""

from __future__ import annotations

import re
import shlex
import typing
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.models import ArgumentInfo

from anydraft.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = {command.__name__: command for command in COMMANDS}


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    yield from re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if not link.startswith(("http://", "https://")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_page_is_in_the_index() -> None:
    linked = set(links(ROOT / "docs" / "README.md"))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= linked, f"docs/README.md leaves out {', '.join(sorted(pages - linked))}"


def commands(page: Path) -> Iterator[list[str]]:
    """The command lines of a page's blocks, in words, continued lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        # shlex would stop at an apostrophe in a comment.
        line = re.split(r"\s{2,}#|\s#\s", line.strip())[0]
        if line.startswith("anydraft ") and "…" not in line:
            yield shlex.split(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    if page.name == "commands.md":
        return  # made from the code
    for words in commands(page):
        _, name, *rest = [word for word in words if word not in ("--verbose", "-v")]
        assert name in NAMES, " ".join(words)
        known = _options(name)
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in known, f"{name} has no {word}: {' '.join(words)}"


def _options(name: str) -> set[str]:
    found = {"--help"}
    hints = typing.get_type_hints(NAMES[name], include_extras=True)
    for parameter in signature(NAMES[name]).parameters:
        info = typing.get_args(hints[parameter])[1]
        if isinstance(info, ArgumentInfo):
            continue
        found.add(f"--{parameter.replace('_', '-')}")
        for declared in (info.default, *(info.param_decls or ())):
            if isinstance(declared, str) and declared.startswith("-"):
                found |= set(declared.split("/"))
    return found


@pytest.mark.parametrize("image", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda p: p.stem)
def test_pictures_are_whole_and_shown(image: Path) -> None:
    root = ElementTree.parse(image).getroot()
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert f"images/{image.name}" in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
