from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import constants as hub

from anydraft.errors import ModelError, UsageError
from anydraft.models import load
from anydraft.models.load import LoadedModel, load_model, resolve_device, resolve_dtype
from tests import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with everything."""
    model, tokenizer = tiny.llama(padded_rows=5)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(source: Any, said: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load_model(source, **options)
    assert "\n" not in str(caught.value)


def test_a_folder(folder: Path):
    model, tokenizer = tiny.llama(padded_rows=5)
    loaded = load_model(folder, dtype="float32")
    assert not loaded.model.training
    assert loaded.name == str(folder)
    assert loaded.stop_ids == {tokenizer.eos_token_id}
    assert loaded.max_context == 256
    assert loaded.vocab_size == len(tokenizer) + 5
    assert (loaded.dtype, loaded.device.type) == (torch.float32, "cpu")
    ids = torch.tensor([tokenizer("def fib").input_ids])
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids).logits, model(ids).logits)
    assert loaded.hf_tokenizer("def fib").input_ids == tokenizer("def fib").input_ids


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, "float16"])
def test_the_dtype_asked_for(folder: Path, dtype: Any):
    wanted = torch.float16 if dtype == "float16" else torch.bfloat16
    loaded = load_model(str(folder), dtype=dtype)
    assert loaded.dtype == wanted
    assert {p.dtype for p in loaded.model.parameters()} == {wanted}


@pytest.mark.parametrize(
    ("has_bf16", "has_kernels", "expected"),
    [
        (True, True, torch.bfloat16),
        (True, False, torch.bfloat16),
        (False, True, torch.bfloat16),
        (False, False, torch.float32),
    ],
)
def test_the_dtype_by_default_and_why(
    has_bf16: bool, has_kernels: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(load, "_cpu_has_bf16", lambda: has_bf16)
    monkeypatch.setattr(load, "available", lambda: has_kernels)
    for nothing in (None, "auto"):
        chosen, reason = resolve_dtype(nothing, "cpu")
        assert chosen == expected
        assert "bfloat16" in reason
    assert resolve_dtype("float32", "cpu") == (torch.float32, "asked for")


def test_the_choice_of_dtype_is_logged(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="anydraft")
    load_model(folder)
    assert str(resolve_dtype()[0]) in caplog.text
    assert resolve_dtype()[1] in caplog.text


@pytest.mark.parametrize("dtype", ["int8", "bf16", torch.int8])
def test_an_unknown_dtype(dtype: Any, folder: Path):
    with pytest.raises(UsageError, match="float32"):
        load_model(folder, dtype=dtype)


def test_devices():
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(UsageError, match="'warp'"):
        resolve_device("warp")


def test_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="sees no GPU"):
        resolve_device("cuda")


def test_stop_ids_are_those_of_all_who_declare_one(folder: Path):
    rewrite(folder / "generation_config.json", eos_token_id=[7, 8])
    rewrite(folder / "config.json", eos_token_id=9)
    assert load_model(folder).stop_ids == {7, 8, 9, tiny.byte_level().eos_token_id}


def test_objects_are_used_as_they_are_and_never_changed():
    pair = tiny.llama()
    model, tokenizer = pair
    before = (
        copy.deepcopy(model.state_dict()),
        copy.deepcopy(vars(model.config)),
        tokenizer.backend_tokenizer.to_str(),
    )
    loaded = load_model(pair, dtype="bfloat16")
    assert loaded.model is model
    assert loaded.hf_tokenizer is tokenizer
    assert loaded.dtype == torch.float32, "its own"
    assert loaded.borrowed
    again = load_model(loaded)
    assert again.model is loaded.model
    assert again.borrowed
    after = model.state_dict(), vars(model.config), tokenizer.backend_tokenizer.to_str()
    assert before[1:] == after[1:]
    assert all(torch.equal(a, b) for a, b in zip(before[0].values(), after[0].values(), strict=True))


@pytest.mark.parametrize("source", [None, 3, "", (1, 2), (1, 2, 3)])
def test_what_names_no_model(source: Any):
    with pytest.raises(UsageError, match=r"folder|\(model, tokenizer\)"):
        load_model(source)


def test_a_model_in_training_is_not_switched(folder: Path):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).train()
    with pytest.raises(UsageError, match=r"model\.eval\(\)"):
        load_model((model, tiny.byte_level()))
    assert model.training


def test_a_bare_decoder_has_no_head(folder: Path):
    refused((transformers.AutoModel.from_pretrained(folder).eval(), tiny.byte_level()), "no LM head")


def test_a_missing_folder(tmp_path: Path):
    refused(tmp_path / "nowhere", "there is no model at")
    refused("./nowhere", "there is no model at")


def test_a_hub_model_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    refused("nobody/no-such-model", "neither a local folder .* nor a packaged model .* nor a hub model")


def test_a_hub_model_in_the_local_cache_needs_no_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--somebody--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    (repository / "snapshots").mkdir()
    folder.rename(repository / "snapshots" / revision)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(transformers.utils.hub, "TRANSFORMERS_CACHE", str(tmp_path / "hub"), raising=False)
    forbid_network(monkeypatch)
    assert load_model("somebody/tiny", dtype="float32").vocab_size == len(tiny.byte_level()) + 5


def forbid_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_folder_never_touches_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch):
    forbid_network(monkeypatch)
    load_model(folder)


def test_a_folder_without_config(folder: Path):
    (folder / "config.json").unlink()
    refused(folder, "no config.json")


def test_a_damaged_config(folder: Path):
    (folder / "config.json").write_text("{")
    refused(folder, "config.json is damaged")


def test_a_folder_without_tokenizer(folder: Path):
    (folder / "tokenizer.json").unlink()
    refused(folder, "has no tokenizer")


def test_a_damaged_tokenizer(folder: Path):
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, "the tokenizer of .* cannot be loaded")


def test_a_folder_without_weights(folder: Path):
    (folder / "model.safetensors").unlink()
    refused(folder, "has no weights")


def test_truncated_weights(folder: Path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(folder, "cannot be loaded")


def test_an_unknown_architecture(folder: Path):
    rewrite(folder / "config.json", model_type="no_such_thing")
    refused(folder, "is not a model that Transformers knows")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (transformers.BertConfig, "not a causal language model"),
        (transformers.T5Config, "encoder-decoder"),
        (transformers.MambaConfig, "cannot be rolled back"),
        (transformers.CLIPConfig, "not a causal language model"),
    ],
)
def test_the_kind_is_named_before_what_else_is_missing(make: Any, said: str, tmp_path: Path):
    make().save_pretrained(tmp_path)
    refused(tmp_path, said)


def test_a_model_larger_than_the_memory_is_refused_before_loading(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(load, "_free_memory", lambda: size * 3 // 4)
    refused(folder, "needs .* of memory in float32", dtype="float32")
    assert load_model(folder, dtype="bfloat16").dtype == torch.bfloat16, "half as large"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_runs_out_while_loading(error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fails)
    refused(folder, "does not fit into memory in float32", dtype="float32")


def test_free_memory_is_known_here():
    free = load._free_memory()
    assert free is None or 0 < free < 1 << 50


def test_progress_bars_stay_off_where_nobody_watches(folder: Path, capfd: pytest.CaptureFixture[str]):
    load_model(folder)
    assert "Loading weights" not in capfd.readouterr().err
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_a_packaged_name_is_pulled(monkeypatch: pytest.MonkeyPatch, smollm2: LoadedModel):
    assert smollm2.name == "smollm2-135m-instruct"
    assert smollm2.dtype == torch.float32
    forbid_network(monkeypatch)
    assert load_model("smollm2-135m-instruct", dtype="bfloat16").dtype == torch.bfloat16
