"""The plugin refuses an SGLang that it does not know, by reading its source."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from anydraft.plugins.hooks import Hook, HostError
from anydraft.plugins.sglang import register
from anydraft.plugins.sglang.host import HOOKS, SUPPORTED, check_hooks
from anydraft.plugins.sglang.refusal import refuse

SOURCE = """
raise RuntimeError("this module is read, never imported")

class Worker:
    def __init__(self, server_args, *, gpu_id): ...
    def step(self, batch): ...
    def anything(self, **options): ...

def start(name): ...

size = 3
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with one module, named after the test's folder so that no other test has read it."""
    name = f"engine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "runner.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_what_is_there_passes_without_an_import(engine: str) -> None:
    module = f"{engine}.runner"
    hooks = [
        Hook(module, "Worker.__init__", ("server_args", "gpu_id")),
        Hook(module, "Worker.step", ("batch",)),
        Hook(module, "Worker.anything", ("whatever",)),
        Hook(module, "start"),
    ]
    check_hooks(hooks, "1")
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("module", "name", "parameters", "said"),
    [
        ("gone", "Worker.step", (), "gone.Worker.step is missing"),
        ("runner", "Walker.step", (), "runner.Walker.step is missing"),
        ("runner", "Worker.leap", (), "runner.Worker.leap is missing"),
        ("runner", "size", (), "runner.size is missing"),
        ("runner", "Worker.step", ("batch", "mask"), "runner.Worker.step does not take mask"),
    ],
)
def test_what_changed_is_named_with_the_remedy(
    module: str, name: str, parameters: tuple[str, ...], said: str, engine: str
) -> None:
    with pytest.raises(HostError, match=said) as caught:
        check_hooks([Hook(f"{engine}.{module}", name, parameters)], "9.9.9")
    assert "(9.9.9)" in str(caught.value)
    assert f"install sglang=={SUPPORTED}" in str(caught.value)


def test_no_package_at_all_is_all_missing() -> None:
    with pytest.raises(HostError, match=r"no\.such\.module\.Worker is missing"):
        check_hooks([Hook("no.such.module", "Worker")], "1")


def test_an_unknown_sglang_gets_algorithms_that_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, Any] = {}

    class SpeculativeAlgorithm:
        @classmethod
        def register(cls, name: str, **options: Any) -> Any:
            registered[name] = options
            return lambda factory: factory

    for name in ("sglang", "sglang.srt", "sglang.srt.speculative"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    spec_info = ModuleType("sglang.srt.speculative.spec_info")
    spec_info.SpeculativeAlgorithm = SpeculativeAlgorithm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, spec_info.__name__, spec_info)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.9")
    register()
    assert set(registered) == {"ANYDRAFT_TLI", "ANYDRAFT_SLEM"}
    for options in registered.values():
        with pytest.raises(HostError, match=r"this SGLang \(0\.9\.9\).*Supported is SGLang 0\.5\.23"):
            options["validate_server_args"](SimpleNamespace())


@pytest.mark.parametrize("command", ["/usr/bin/sglang", "/somewhere/sglang/launch_server.py"])
def test_sglangs_command_ends_with_one_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--model-path", "target"])
    with pytest.raises(SystemExit) as caught:
        refuse(HostError("use 1"))
    assert caught.value.code == "error: use 1"


def test_a_python_caller_gets_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    with pytest.raises(HostError, match="use 1"):
        refuse(HostError("use 1"))


@pytest.mark.sglang
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_the_supported_sglang_has_it_all() -> None:
    import sglang

    check_hooks(HOOKS, sglang.__version__)
