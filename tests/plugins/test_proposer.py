"""The class that vLLM makes, in a fake of it: what it checks, and drafts from start to end."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers

from anydraft.errors import AnyDraftError, ModelError, PairError, UsageError
from anydraft.plugins.hooks import HostError
from anydraft.plugins.vllm import AnyDraftProposer
from tests import tiny
from tests.plugins import fake_vllm
from tests.plugins.hosts import HostRequest, TableHost, alone
from tests.proof.worlds import Table

K = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Configs and tokenizers; what stands for the draft's weights is read by nobody."""
    root = tmp_path_factory.mktemp("models")
    for name, (model, tokenizer) in {"target": tiny.llama(), "draft": tiny.gemma3()}.items():
        model.config.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    (root / "draft" / "model.safetensors").touch()
    return {"target": root / "target", "draft": root / "draft"}


def config(folders: dict[str, Path], *, count: int = K, max_model_len: int = 200, **options: Any) -> Any:
    target, _ = tiny.llama()
    return fake_vllm.FakeConfig(
        model_config=SimpleNamespace(
            tokenizer=str(folders["target"]),
            hf_config=target.config,
            try_get_generation_config=dict,
            get_vocab_size=lambda: target.config.vocab_size,
            max_model_len=max_model_len,
            dtype="float32",
            trust_remote_code=False,
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=count),
        additional_config={"anydraft": {"log_interval": 0, **options}},
    )


def installed(monkeypatch: pytest.MonkeyPatch) -> fake_vllm.PagedTable:
    """The fake vLLM, whose draft is a table over the tiny Gemma's vocabulary."""
    vocab_size = len(tiny.sentencepiece_like())
    layers = {"sliding": fake_vllm.AttentionLayerBase(), "full": fake_vllm.AttentionLayerBase()}
    model = fake_vllm.PagedTable(Table(vocab_size, 3), layers)
    fake_vllm.install(monkeypatch, model)
    monkeypatch.setattr(fake_vllm.ModelConfig, "get_vocab_size", lambda self: vocab_size, raising=False)
    return model


@pytest.mark.parametrize("method", ["slem", "tli", "auto"])
def test_texts_are_the_targets_own(
    method: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch)
    proposer = AnyDraftProposer(config(folders, draft=str(folders["draft"]), method=method))
    proposer.load_model(None)
    table = Table(tiny.llama()[0].config.vocab_size, 11)
    host = TableHost(table, proposer.propose, trouble=0.1, chunk=9)
    requests = [
        HostRequest(f"r{i}", tiny.byte_level().encode(text), 12) for i, text in enumerate(tiny.CORPUS[:3])
    ]
    for request in requests:
        assert (
            alone(table, request.prompt, 12)[: len(host.run([request])[request.name])]
            == host.finished[request.name]
        )


def test_drafts_are_in_the_targets_tokens_and_continue_the_text(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SLEM proposes is the text that the draft's table continues with."""
    model = installed(monkeypatch)
    proposer = AnyDraftProposer(config(folders, draft=str(folders["draft"]), method="slem"))
    proposer.load_model(None)
    target, draft = tiny.byte_level(), tiny.sentencepiece_like()
    ids = target.encode("The quick brown")
    tokens = np.array([ids], dtype=np.int32)
    proposed = proposer.propose([[ids[-1]]], np.array([len(ids)]), tokens)[0]
    history = draft.encode("The quick brown")
    text = ""
    for _ in range(K):
        history.append(int(model.table.logits(tuple(history)).argmax()))
        text += draft.decode(history[-1:])
    assert target.decode(proposed) == text[: len(target.decode(proposed))]


def test_room_ends_where_the_context_does(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    proposer = AnyDraftProposer(config(folders, method="lookup", max_model_len=8))
    tokens = np.array([[5, 6, 7, 5, 6, 7, 5, 6]], dtype=np.int32)
    for length, expected in [(5, [7, 5]), (6, [5]), (7, []), (8, [])]:
        assert proposer.propose([[1]], np.array([length]), tokens) == [expected]


def test_the_sampler_of_a_cpu_is_repaired(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)
    from anydraft.plugins.vllm import sampling

    AnyDraftProposer(config(folders, method="lookup"))
    import vllm.v1.sample.rejection_sampler as sampler

    assert sampler.expand_batch_to_tokens is sampling.expand_batch_to_tokens


def test_a_draft_that_is_not_used_is_named_in_the_log(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_vllm.install(monkeypatch)
    AnyDraftProposer(config(folders, method="lookup"))
    assert "is not loaded" not in caplog.text
    AnyDraftProposer(config(folders, method="lookup", draft=str(folders["draft"])))
    assert f"the draft {folders['draft']} is not loaded" in caplog.text


def test_the_log_has_a_line_at_intervals(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_vllm.install(monkeypatch)
    proposer = AnyDraftProposer(config(folders, method="lookup", log_interval=1e-9))
    with caplog.at_level(logging.INFO, logger="vllm.anydraft"):
        for length in (5, 6, 7):
            proposer.propose([[1]], np.array([length]), np.array([[5, 6, 7, 5, 6, 7, 5]], dtype=np.int32))
    assert caplog.text.count("AnyDraft metrics: Mean acceptance length: 1.00, Accepted: 1 tokens") == 2
    assert caplog.text.count("Requests: 1") == 2


def refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, **options: Any) -> AnyDraftError:
    installed(monkeypatch)
    change = options.pop("change", lambda host: None)
    host = config(folders, **options)
    change(host)
    with pytest.raises(AnyDraftError) as caught:
        AnyDraftProposer(host)
    assert "\n" not in str(caught.value)
    return caught.value


def test_bad_input_is_refused_before_any_weights(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    draft = str(folders["draft"])
    error = refused(folders, monkeypatch, method="magic")
    assert isinstance(error, UsageError)
    error = refused(folders, monkeypatch, method="lookup", count=0)
    assert "num_speculative_tokens=0 must be at least 1" in str(error)
    error = refused(folders, monkeypatch, draft=str(tmp_path / "gone"))
    assert isinstance(error, ModelError)
    assert "gone" in str(error)
    error = refused(folders, monkeypatch, draft=draft, quantization="unheard-of")
    assert str(error).endswith("Unknown quantization method: unheard-of.")
    monkeypatch.setattr(fake_vllm.ModelConfig, "is_multimodal_model", True)
    error = refused(folders, monkeypatch, draft=draft)
    assert "is multimodal; give a text-only model" in str(error)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_draft_that_could_not_be_loaded_later_is_refused_now(
    quantization: str | None, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(folders["draft"], draft)
    (draft / "model.safetensors").unlink()
    error = refused(folders, monkeypatch, draft=str(draft), quantization=quantization)
    assert str(error).endswith("has no weights (*.safetensors); download the model again")
    (draft / "model.safetensors").touch()
    text = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(transformers.Gemma3Config(text_config=text).to_json_string())
    error = refused(folders, monkeypatch, draft=str(draft), quantization=quantization)
    assert "is multimodal; give a text-only model" in str(error)


class Damaged(Exception): ...


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (
            "vllm.config.utils.replace",
            ValueError("torch.float32 is not supported for quantization method fp8"),
            r": torch\.float32 is not supported",
        ),
        (
            "vllm.model_executor.model_loader.get_model",
            Damaged("header too large\nmore lines"),
            r": header too large$",
        ),
    ],
    ids=["quantization", "weights"],
)
def test_what_vllm_refuses_of_the_draft_is_said_of_the_draft(
    function: str,
    error: Exception,
    said: str,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    installed(monkeypatch)
    proposer = AnyDraftProposer(config(folders, draft=str(folders["draft"])))
    module, name = function.rsplit(".", 1)
    monkeypatch.setattr(sys.modules[module], name, fail)
    with pytest.raises(ModelError, match="vLLM cannot load the draft .*" + said):
        proposer.load_model(None)


def test_pipeline_ranks_are_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def two(host: Any) -> None:
        host.parallel_config.pipeline_parallel_size = 2

    error = refused(folders, monkeypatch, method="lookup", change=two)
    assert isinstance(error, HostError)
    assert "pipeline_parallel_size=2" in str(error)


def test_tensor_ranks_decide_by_what_the_first_measured(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch)
    host = config(folders, method="lookup")
    host.parallel_config.tensor_parallel_size = 2
    proposer = AnyDraftProposer(host)
    for length in range(2, 6):
        proposer.propose([[1]], np.array([length]), np.array([[1, 2, 3, 4, 5]], dtype=np.int32))
    assert proposer.drafter.record.target_seconds == 2 * 0.125


def test_tli_without_a_text_in_common_is_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from anydraft.plugins.vllm import proposer

    class Apart(proposer.Bridge):
        """Of which only the control tokens meet."""

        def __init__(self, *vocabularies: Any) -> None:
            super().__init__(*vocabularies)
            self.draft_to_target[[i for i, _ in self.draft.text_items()]] = -1
            assert len(self.intersection)

    monkeypatch.setattr(proposer, "Bridge", Apart)
    error = refused(folders, monkeypatch, draft=str(folders["draft"]), method="tli")
    assert isinstance(error, PairError)
    assert "no text token in common" in str(error)


def test_a_cache_too_small_for_one_request_is_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch)
    proposer = AnyDraftProposer(config(folders, draft=str(folders["draft"]), kv_cache_gib=1e-6))
    with pytest.raises(
        UsageError, match=r"kv_cache_gib=1e-06 holds 64 tokens of the draft .*; give at least"
    ):
        proposer.load_model(None)


def test_a_draft_with_other_state_is_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch)
    monkeypatch.setattr(fake_vllm.AttentionLayerBase, "get_kv_cache_spec", lambda self, vllm_config: None)
    proposer = AnyDraftProposer(config(folders, draft=str(folders["draft"])))
    with pytest.raises(HostError, match="keeps state that cannot be rolled back"):
        proposer.load_model(None)
