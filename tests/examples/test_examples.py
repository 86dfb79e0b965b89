"""The examples run, on tiny models; vLLM's is only asked to say what it needs."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    paths = []
    for name, (model, tokenizer) in {"target": tiny.llama(), "draft": tiny.gemma3()}.items():
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        paths.append(str(folder))
    return paths[0], paths[1]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(EXAMPLES.parent), OMP_NUM_THREADS="1"),
        timeout=240,
        check=False,
    )


def test_every_example_is_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "demo.py",
        "openai_client.py",
        "python_api.py",
        "transformers_generate.py",
        "vllm_generate.py",
    }


def test_the_python_api(folders: tuple[str, str]) -> None:
    result = run("python_api.py", *folders)
    assert result.returncode == 0, result.stderr
    assert "tokens a target call" in result.stdout
    assert "\nTrue '" in result.stdout or '\nTrue "' in result.stdout


def test_the_openai_client(folders: tuple[str, str]) -> None:
    result = run("openai_client.py", *folders)
    assert result.returncode == 0, result.stderr
    assert "tokens a drafted step" in result.stdout
    assert "--- a chat" in result.stdout


def test_the_openai_client_says_why_a_server_does_not_start(folders: tuple[str, str]) -> None:
    result = run("openai_client.py", folders[0], "./none")
    assert result.returncode == 1
    assert "no model at ./none" in result.stderr
    assert result.stderr.rstrip().endswith("it said why above")


def test_transformers_generate(folders: tuple[str, str]) -> None:
    result = run("transformers_generate.py", *folders)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("def fib(n):")
    assert "tokens a target call" in result.stdout


def test_vllms_compiles_and_says_what_it_needs(tmp_path: Path) -> None:
    py_compile.compile(str(EXAMPLES / "vllm_generate.py"), str(tmp_path / "compiled"), doraise=True)
    (tmp_path / "vllm.py").write_text("raise ModuleNotFoundError('vllm')")
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "vllm_generate.py")],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(tmp_path)),
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "needs vLLM" in result.stderr and "Traceback" not in result.stderr
