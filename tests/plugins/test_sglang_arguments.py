"""SGLang's arguments for our algorithms: completed, or refused with what to give."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants as hub

from anydraft.errors import AnyDraftError, ModelError, UsageError
from anydraft.plugins.hooks import HostError
from anydraft.plugins.sglang.arguments import complete, find_draft, is_ours, refuse_backend
from anydraft.plugins.sglang.options import read_context, read_draft_options, refuse_draft_options


def arguments(**given: Any) -> SimpleNamespace:
    defaults = {
        "speculative_draft_model_path": "draft",
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_num_draft_tokens": None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_use_rejection_sampling": False,
        "speculative_use_block_verification": False,
        "speculative_token_map": None,
        "max_running_requests": None,
        "enable_mixed_chunk": True,
        "enable_dp_attention": False,
        "tp_size": 1,
        "pp_size": 1,
    }
    return SimpleNamespace(**(defaults | given))


class Sealed(SimpleNamespace):
    """Arguments that may no longer be written to."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 4),
        ({"speculative_num_steps": 2}, 2),
        ({"speculative_num_draft_tokens": 7}, 6),
        ({"speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1}, 3),
    ],
)
def test_what_was_not_given_is_filled_in(given: dict[str, Any], steps: int) -> None:
    args = arguments(**given)
    complete(args, "ANYDRAFT_TLI")
    assert (args.speculative_num_steps, args.speculative_num_draft_tokens) == (steps, steps + 1)
    assert args.speculative_eagle_topk == 1
    assert args.max_running_requests == 48
    assert not args.enable_mixed_chunk


def test_a_bound_on_running_requests_stays() -> None:
    args = arguments(max_running_requests=3)
    complete(args, "ANYDRAFT_TLI")
    assert args.max_running_requests == 3


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"speculative_draft_model_path": None}, UsageError, "give --speculative-draft-model-path"),
        ({"speculative_eagle_topk": 4}, UsageError, "--speculative-eagle-topk 4 is not supported"),
        ({"speculative_num_steps": 0}, UsageError, "--speculative-num-steps 0 must be at least 1"),
        (
            {"speculative_num_draft_tokens": 1},
            UsageError,
            "--speculative-num-draft-tokens 1 must be at least 2",
        ),
        (
            {"speculative_num_steps": 3, "speculative_num_draft_tokens": 9},
            UsageError,
            r"must be --speculative-num-steps \+ 1 = 4",
        ),
        ({"speculative_accept_threshold_acc": 0.5}, UsageError, "--speculative-accept-threshold-acc 0.5"),
        ({"speculative_token_map": "map.pt"}, UsageError, "finds the common tokens itself"),
        ({"speculative_use_rejection_sampling": True}, HostError, "--speculative-use-rejection-sampling"),
        ({"tp_size": 2}, HostError, "--tp-size 2 is not supported by ANYDRAFT_TLI"),
        ({"pp_size": 2}, HostError, "--pp-size 2"),
        ({"enable_dp_attention": True}, HostError, "--enable-dp-attention"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(
    given: dict[str, Any], kind: type[AnyDraftError], said: str
) -> None:
    args = arguments(**given)
    with pytest.raises(kind, match=said) as caught:
        complete(args, "ANYDRAFT_TLI")
    assert "\n" not in str(caught.value)
    assert args.max_running_requests is None, "nothing is written before all is checked"


def test_attention_that_cannot_verify_drafts_is_refused() -> None:
    refuse_backend(arguments(device="cpu", attention_backend=None), has_amx=True)
    refuse_backend(arguments(device="cuda", attention_backend="fa3"), has_amx=False)
    with pytest.raises(
        HostError, match="--attention-backend torch_native cannot verify drafts; give another one"
    ):
        refuse_backend(arguments(device="cuda", attention_backend="torch_native"), has_amx=True)
    with pytest.raises(HostError, match="cannot verify drafts on this CPU: without AMX"):
        # What SGLang has put in place of intel_amx by then.
        refuse_backend(arguments(device="cpu", attention_backend="torch_native"), has_amx=False)


def test_which_algorithms_are_ours() -> None:
    assert is_ours("ANYDRAFT_SLEM")
    assert is_ours("anydraft_tli")
    assert not is_ours("EAGLE")
    assert not is_ours(None)
    with pytest.raises(
        UsageError, match="--speculative-algorithm ANYDRAFT_LOOKUP is unknown; choose ANYDRAFT_SLEM"
    ):
        is_ours("ANYDRAFT_LOOKUP")


def test_a_draft_is_named_by_its_folder_before_sglang_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: dict[str, Path | str] = {"packaged": tmp_path, "hub/id": "hub/id"}
    monkeypatch.setattr("anydraft.plugins.sglang.arguments.locate", places.get)
    monkeypatch.setattr("anydraft.plugins.sglang.arguments.load_config", lambda *_, **__: None)
    args = arguments(speculative_draft_model_path="packaged")
    find_draft(args)
    assert args.speculative_draft_model_path == str(tmp_path)
    for given in ("hub/id", None):
        sealed = Sealed(speculative_draft_model_path=given)
        find_draft(sealed)
        assert sealed.speculative_draft_model_path == given


def test_a_draft_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ModelError, match="there is no model at /nowhere/draft; give an existing folder"):
        find_draft(arguments(speculative_draft_model_path="/nowhere/draft"))


def test_a_draft_without_a_config_is_refused_before_sglang_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"is not a model folder: it has no config.json"):
        find_draft(arguments(speculative_draft_model_path=str(tmp_path)))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"neither a local folder .* nor a packaged model .* nor a hub model"
    ):
        find_draft(arguments(speculative_draft_model_path="nobody/no-such-model"))


def test_the_options_of_a_draft_are_variables() -> None:
    environment = {"ANYDRAFT_QUANTIZATION": "int8", "ANYDRAFT_WINDOW": "512", "ANYDRAFT_METHOD": "tli"}
    options = read_draft_options(arguments(), environment, "slem")
    assert (options.draft, options.method) == ("draft", "slem")
    assert (options.quantization, options.window) == ("int8", 512)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UsageError, match="ANYDRAFT_QUANTIZATION='awq' is unknown; choose one of int8, int4"):
        read_draft_options(arguments(), {"ANYDRAFT_QUANTIZATION": "awq"}, "tli")
    said = "ANYDRAFT_TLI_CONTEXT='unk' is unknown; choose one of retokenized, last, eos"
    with pytest.raises(UsageError, match=said):
        read_context({"ANYDRAFT_TLI_CONTEXT": "unk"})


def test_tli_reads_the_text_in_the_drafts_own_tokens_unless_told_otherwise() -> None:
    assert read_context({}) == read_context({"ANYDRAFT_TLI_CONTEXT": ""}) == "retokenized"
    assert read_context({"ANYDRAFT_TLI_CONTEXT": "last"}) == "last"


def test_options_of_a_draft_beside_sglang_are_refused_in_its_slots() -> None:
    refuse_draft_options({"ANYDRAFT_TLI_CONTEXT": "last", "ANYDRAFT_WINDOW": "", "ANYDRAFT_METHOD": "slem"})
    for name in ("WINDOW", "QUANTIZATION", "DTYPE", "KV_CACHE_GIB", "LOG_INTERVAL"):
        with pytest.raises(UsageError, match=f"ANYDRAFT_{name}='8' is for a draft beside SGLang"):
            refuse_draft_options({f"ANYDRAFT_{name}": "8"})
