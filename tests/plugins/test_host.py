"""Whether a vLLM is one that the plugin knows, and the fault that it repairs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anydraft.plugins.hooks import Hook, HostError
from anydraft.plugins.vllm.host import DRAFT_HOOKS, PROPOSER_HOOKS, check_hooks
from anydraft.plugins.vllm.sampling import expand_batch_to_tokens, repair_sampling


class Runner:
    def step(self, rows: int, *, width: int) -> None: ...

    def anything(self, **options: Any) -> None: ...


def load(name: str) -> Any:
    if name != "engine.runner":
        raise ImportError(name)
    return SimpleNamespace(Runner=Runner, size=3)


def test_what_is_there_passes() -> None:
    hooks = [
        Hook("engine.runner", "Runner"),
        Hook("engine.runner", "Runner.step", ("rows", "width")),
        Hook("engine.runner", "Runner.anything", ("whatever",)),
    ]
    check_hooks(hooks, "1", load)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (Hook("engine.gone", "Runner"), "engine.gone.Runner is missing"),
        (Hook("engine.runner", "Walker"), "engine.runner.Walker is missing"),
        (Hook("engine.runner", "Runner.leap"), "engine.runner.Runner.leap is missing"),
        (Hook("engine.runner", "Runner.step", ("rows", "depth")), "Runner.step does not take depth"),
        (Hook("engine.runner", "size"), "engine.runner.size has no signature"),
    ],
)
def test_what_is_not_there_is_refused_with_the_supported_versions(hook: Hook, said: str) -> None:
    with pytest.raises(HostError, match=said) as caught:
        check_hooks([hook, Hook("engine.runner", "Runner")], "9.9.9", load)
    message = str(caught.value)
    assert "9.9.9" in message
    assert "Supported is vLLM 0.32; install vllm~=0.32.0" in message
    assert "\n" not in message


def test_all_that_is_missing_is_named() -> None:
    with pytest.raises(HostError, match=r"engine\.a\.x is missing; engine\.b\.y is missing"):
        check_hooks([Hook("engine.a", "x"), Hook("engine.b", "y")], "1", load)


@pytest.mark.vllm
def test_this_machines_vllm_has_every_hook() -> None:
    vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
    check_hooks([*PROPOSER_HOOKS, *DRAFT_HOOKS], vllm.__version__)


def right(x: Any, ends: Any, n: int, replace_from: int = 0, replace_to: int = 0) -> torch.Tensor:
    expanded, start = [], 0
    for value, end in zip(x.tolist(), ends.tolist(), strict=True):
        expanded += [replace_to if value == replace_from else value] * (end - start)
        start = end
    assert len(expanded) == n
    return torch.tensor(expanded, dtype=x.dtype)


def faulty(x: Any, ends: Any, n: int, replace_from: int = 0, replace_to: int = 0) -> torch.Tensor:
    """As vLLM 0.32 on a CPU: right for int64, else whatever the memory held."""
    if x.dtype == torch.int64:
        return right(x, ends, n, replace_from, replace_to)
    return torch.zeros(n, dtype=x.dtype)


def forgets_replacing(x: Any, ends: Any, n: int, replace_from: int = 0, replace_to: int = 0) -> torch.Tensor:
    return right(x, ends, n, -99, 0)


def keep(logits: torch.Tensor, k: Any, p: Any) -> torch.Tensor:
    return logits


def largest_first(logits: torch.Tensor, k: Any, p: Any) -> torch.Tensor:
    """As vLLM 0.32: the largest k of no rows is not defined."""
    return logits[:, : int(k.max())]


def test_top_k_of_no_rows_is_repaired_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    sampler = SimpleNamespace(expand_batch_to_tokens=right, apply_top_k_top_p=largest_first)
    with caplog.at_level(logging.WARNING):
        assert repair_sampling(sampler)
        assert not repair_sampling(sampler)
    assert len(caplog.records) == 1
    assert sampler.apply_top_k_top_p(torch.empty(0, 5), torch.empty(0, dtype=torch.int32), None).shape == (
        0,
        5,
    )
    k = torch.tensor([2, 1])
    assert sampler.apply_top_k_top_p(torch.ones(2, 5), k, None).shape == (2, 2)


def test_a_sampler_that_is_right_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    sampler = SimpleNamespace(expand_batch_to_tokens=right, apply_top_k_top_p=keep)
    assert not repair_sampling(sampler)
    assert sampler.expand_batch_to_tokens is right
    assert not caplog.records


@pytest.mark.parametrize("wrong", [faulty, forgets_replacing])
def test_a_sampler_that_is_wrong_is_repaired_and_said_once(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = SimpleNamespace(expand_batch_to_tokens=wrong, apply_top_k_top_p=keep)
    with caplog.at_level(logging.WARNING):
        assert repair_sampling(sampler)
        assert not repair_sampling(sampler)
    assert len(caplog.records) == 1
    assert "55005" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_the_repair_gives_each_token_its_requests_value(dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 5], dtype=dtype)
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    assert torch.equal(expand_batch_to_tokens(x, ends, 6, 0, 1), right(x, ends, 6, 0, 1))
    assert torch.equal(expand_batch_to_tokens(x, ends, 6), right(x, ends, 6))
    assert expand_batch_to_tokens(x, ends, 6, 0, 1).dtype == dtype
