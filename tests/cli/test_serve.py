"""anydraft serve and anydraft run --trace as commands, on a tiny model in a folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from anydraft.cli.main import app
from tests import tiny


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    made = []
    for name, (model, tokenizer) in (("target", tiny.llama()), ("draft", tiny.gemma3())):
        path = tmp_path_factory.mktemp(name)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        made.append(str(path))
    return made[0], made[1]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anydraft", *arguments]


@contextmanager
def serving(
    folders: tuple[str, str], *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process and what it says once it takes requests."""
    target, draft = folders
    process = subprocess.Popen(
        command("serve", target, "--draft", draft, "--json", "--dtype", "float32", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ANYDRAFT_API_KEY": "sesame"},
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def complete(url: str, model: str) -> httpx.Response:
    fields = {"model": model, "prompt": "The quick", "max_tokens": 5, "temperature": 0}
    return httpx.post(
        f"{url}/v1/completions", json=fields, headers={"authorization": "Bearer sesame"}, timeout=30
    )


def test_a_server_that_is_killed_starts_again_on_its_port(folders: tuple[str, str]) -> None:
    with serving(folders, "--port", "0", "--served-model-name", "tiny") as (process, told):
        assert told["method"] == "auto(slem+lookup)"
        assert httpx.get(f"{told['url']}/v1/models").status_code == 401, "the key comes from the environment"
        first = complete(told["url"], "tiny").json()["choices"][0]["text"]
        with httpx.stream("GET", f"{told['url']}/metrics"):
            process.kill()
            process.wait()
    port = told["url"].rsplit(":", 1)[1]
    with serving(folders, "--port", port, "--method", "none") as (process, again):
        assert again == {"url": told["url"], "model": folders[0], "method": "none"}
        card = httpx.get(f"{told['url']}/v1/models", headers={"authorization": "Bearer sesame"}).json()[
            "data"
        ][0]
        assert "slem" in card["speculative"]["methods"], "requests may draft all the same"
        assert complete(told["url"], folders[0]).json()["choices"][0]["text"] == first
        taken = subprocess.run(
            command("serve", folders[0], "--port", port), capture_output=True, text=True, check=False
        )
        assert taken.returncode == 1
        assert re.search(rf"127.0.0.1:{port} cannot be listened on: .*; choose another", taken.stderr)
        assert "Traceback" not in taken.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-queue", "-1"], "max_queue=-1"),
        (["--request-timeout", "0"], "request_timeout=0"),
        (["--api-key", ""], "API key is empty"),
        (["--method", "slem"], "--method slem needs a draft model"),
        (["--port", "70000"], "65535"),
    ],
)
def test_wrong_usage(folders: tuple[str, str], arguments: list[str], said: str) -> None:
    done = subprocess.run(
        command("serve", folders[0], *arguments), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_run_with_its_trace(folders: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "trace.html"
    arguments = ["run", folders[0], "fox </script>?", "--draft", folders[1], "--json", "--max-tokens", "20"]
    options = ["--method", "slem", "--dtype", "float32"]
    done = subprocess.run(
        command(*arguments, *options, "--trace", str(page)), capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    text = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="run">(.*?)</script>', text, re.DOTALL)
    run = json.loads(data)
    assert run["prompt"] == "fox </script>?"
    assert "".join(token["text"] for step in run["steps"] for token in step) == run["text"] == report["text"]
    assert len(run["steps"]) == report["metrics"]["speculative_decoding"]["num_steps"]
    assert report["metrics"]["speculative_decoding"]["predicted_speedup"] > 0


def test_a_chat_with_a_model_that_has_no_chat_template_is_refused(tmp_path: Path) -> None:
    model, shared = tiny.llama()
    tokenizer = deepcopy(shared)
    tokenizer.chat_template = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    done = subprocess.run(
        command("run", str(tmp_path), "a fox", "--chat"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--chat" in done.stderr and "--raw" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["no/trace.html", ""])
def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_loaded(
    tmp_path: Path, name: str
) -> None:
    result = CliRunner().invoke(app, ["run", "./no-such-model", "text", "--trace", str(tmp_path / name)])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert "--trace" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_can_be_written_is_not_there_before_it_is(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "./no-such-model", "text", "--trace", str(tmp_path / "t.html")])
    assert result.exit_code == 1
    assert "no model at" in result.stderr
    assert list(tmp_path.iterdir()) == []
