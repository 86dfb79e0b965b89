"""Drives the server's page in headless Chromium, checks what it shows and takes screenshots.

    pip install playwright && apt-get install chromium
    python scripts/page_check.py OUT [--target TARGET --draft DRAFT] [--chromium /usr/bin/chromium]

Starts ``anydraft serve`` on a free port, sends a chat, switches the method, stops an answer, opens the page of a
finished run, ends the server in the middle and looks at the error. Screenshots of desktop and phone width, light and
dark, go to the folder OUT. Exits with 1 when something is not as it must be. Not part of ``make test``: it needs a
browser and real models.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
QUESTION = "Write a Python function that merges two sorted lists. Code only."
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def check(holds: bool, what: str) -> None:
    print(("ok      " if holds else "FAILED  ") + what, flush=True)
    if not holds:
        sys.exit(1)


@contextmanager
def serving(target: str, draft: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "anydraft", "serve", target, "--draft", draft, "--port", "0", "--json"]
    process = subprocess.Popen([*command, "--shutdown-timeout", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait()


def open_page(browser: Browser, url: str, size: dict[str, int], scheme: str, problems: list[str]) -> Page:
    """A page in a context of its own, whose complaints and outside requests go to ``problems``."""
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((url, "data:")) else problems.append(r.url))
    page.goto(url)
    return page


def answer(page: Page, text: str) -> str:
    """Send ``text`` by keyboard and wait for the end of its answer."""
    page.locator("#prompt").fill(text)
    page.keyboard.press("Enter")
    page.locator("#stop").wait_for(state="visible")
    page.locator("#send").wait_for(state="visible", timeout=120_000)
    return page.locator(".answer .said").last.inner_text()


def figures(page: Page) -> list[str]:
    return [page.locator(f"#{name}").inner_text() for name in ("rate", "length", "speedup")]


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def check_chat(page: Page, out: Path) -> None:
    page.locator("#method option").first.wait_for(state="attached")
    page.screenshot(path=out / "desktop-light-welcome.png")
    page.locator("#max-tokens").fill("96")
    text = answer(page, QUESTION)
    tokens = page.locator(".answer .token")
    check("".join(tokens.all_inner_texts()).split() == text.split(), "the tokens are the answer's text")
    classes = {c for t in tokens.all() for c in (t.get_attribute("class") or "").split()}
    check({"accepted", "corrected"} <= classes, f"tokens show their sources: {sorted(classes)}")
    check(all("–" not in f for f in figures(page)), f"figures are shown: {figures(page)}")
    check("tok/s" in page.locator(".answer .line").inner_text(), page.locator(".answer .line").inner_text())
    check("finished" in page.locator("#status").inner_text(), "screen readers hear of the end")
    page.screenshot(path=out / "desktop-light-answer.png")
    page.locator("#legend button").first.click()
    check(page.locator("#app").get_attribute("data-only") == "accepted", "the legend shows one source only")
    page.screenshot(path=out / "desktop-light-accepted-only.png")
    page.locator("#legend button").first.click()


def check_methods(page: Page) -> None:
    page.locator("#new").click()
    first = None
    for method in ("none", "slem", "auto"):
        page.locator("#new").click()
        page.locator("#method").select_option(method)
        text = answer(page, QUESTION)
        first = first or text
        check(text == first, f"method {method}: the same text")
        check(method in page.locator(".answer .line").inner_text(), f"method {method} is named")
    check(page.locator(".answer .token.accepted, .answer .token.lookup").count() > 0, "auto accepted drafts")


def check_stop(page: Page) -> None:
    page.locator("#max-tokens").fill("2000")
    page.locator("#prompt").fill("Count from 1 to 1000, one number a line.")
    page.locator("#send").click()
    page.locator(".answer").last.locator(".token").nth(12).wait_for()
    page.keyboard.press("Escape")
    page.locator("#send").wait_for(state="visible")
    check("stopped" in page.locator(".answer .line").last.inner_text(), "Escape stops an answer")
    check(page.locator("#trouble").is_hidden(), "which is no error")


def check_text_is_text(page: Page) -> None:
    page.locator("#new").click()
    page.locator("#max-tokens").fill("8")
    answer(page, "<img src=x onerror=alert(1)><script>alert(2)</script>")
    check(page.locator(".turn img, .turn script").count() == 0, "markup in a message stays text")


def check_phone(page: Page, out: Path, scheme: str) -> None:
    page.locator("#method option").first.wait_for(state="attached")
    check(fits(page), f"phone, {scheme}: nothing is wider than the screen")
    page.screenshot(path=out / f"phone-{scheme}-welcome.png")
    answer(page, QUESTION)
    check(fits(page), f"phone, {scheme}: nor with an answer")
    page.screenshot(path=out / f"phone-{scheme}-answer.png")
    page.locator("#open-side").click()
    page.wait_for_timeout(300)
    check(page.locator("#method").is_visible(), f"phone, {scheme}: the settings open")
    page.screenshot(path=out / f"phone-{scheme}-settings.png")
    page.keyboard.press("Escape")


def check_server_gone(page: Page, process: subprocess.Popen[str], out: Path) -> None:
    page.locator("#max-tokens").fill("2000")
    page.locator("#prompt").fill("Count from 1 to 1000, one number a line.")
    page.keyboard.press("Enter")
    page.locator(".answer").last.locator(".token").nth(12).wait_for()
    process.kill()
    process.wait()
    page.locator("#trouble").wait_for(state="visible")
    check("broke off" in page.locator("#trouble-text").inner_text(), "a server that dies is reported")
    check(page.locator("#prompt").input_value() != "", "the message is not lost")
    page.screenshot(path=out / "desktop-dark-server-gone.png")
    page.locator("#retry").click()
    page.locator("#trouble").wait_for(state="visible")
    check("does not answer" in page.locator("#trouble-text").inner_text(), "and again when it is still gone")


def check_trace(browser: Browser, target: str, draft: str, out: Path) -> None:
    path = out / "trace.html"
    prompt = f"{QUESTION} </script><b>&amp;<!-- run -->"
    command = [
        sys.executable,
        "-m",
        "anydraft",
        "run",
        target,
        prompt,
        "--draft",
        draft,
        "--max-tokens",
        "96",
    ]
    subprocess.run([*command, "--trace", str(path)], check=True, stdout=subprocess.DEVNULL)
    for name, size, scheme in (("desktop", DESKTOP, "light"), ("phone", PHONE, "dark")):
        problems: list[str] = []
        page = open_page(browser, path.absolute().as_uri(), size, scheme, problems)
        check(page.locator("#answer .token").count() > 20, f"trace, {name}: tokens are shown")
        check(page.locator("#prompt").inner_text() == prompt, f"trace, {name}: the prompt is text")
        page.locator("summary").click()
        check(fits(page), f"trace, {name}: nothing is wider than the screen")
        page.screenshot(path=out / f"{name}-{scheme}-trace.png", full_page=True)
        check(not problems, f"trace, {name}: no complaints {problems}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--draft", default="smollm2-135m-instruct")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options: Any = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=CHROMIUM_FLAGS)
        problems: list[str] = []
        with serving(options.target, options.draft) as (process, url):
            page = open_page(browser, url, DESKTOP, "light", problems)
            check_chat(page, options.out)
            check_methods(page)
            check_stop(page)
            check_text_is_text(page)
            for scheme in ("light", "dark"):
                check_phone(open_page(browser, url, PHONE, scheme, problems), options.out, scheme)
            check(not problems, f"no complaints and no outside requests {problems}")
            dark = open_page(browser, url, DESKTOP, "dark", [])
            dark.locator("#method option").first.wait_for(state="attached")
            answer(dark, QUESTION)
            dark.screenshot(path=options.out / "desktop-dark-answer.png")
            check_server_gone(dark, process, options.out)
        check_trace(browser, options.target, options.draft, options.out)
        browser.close()
    print("the page is as it must be")


if __name__ == "__main__":
    main()
