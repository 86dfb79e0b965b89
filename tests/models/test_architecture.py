from __future__ import annotations

from typing import Any

import pytest
import transformers

from anydraft.errors import ModelError
from anydraft.models.architecture import refuse_stateful, refuse_unsupported

SERVED = [
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "mistral",
    "phi3",
    "gpt2",
    "smollm3",
    "olmo2",
]
ENCODERS = ["bert", "roberta", "xlm-roberta", "electra", "clip_text_model", "vit", "modernbert"]
ENCODER_DECODERS = ["t5", "bart", "marian", "pegasus", "whisper"]
RECURRENT = [
    "mamba",
    "mamba2",
    "rwkv",
    "jamba",
    "recurrent_gemma",
    "qwen3_next",
    "lfm2",
    "bamba",
    "falcon_h1",
    "zamba2",
]


def config(kind: str) -> Any:
    return transformers.CONFIG_MAPPING[kind]()


@pytest.mark.parametrize("kind", SERVED)
def test_decoders_with_attention_only_are_served(kind: str):
    refuse_unsupported(config(kind), "some/model")


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (ENCODERS, "is not a causal language model"),
        (ENCODER_DECODERS, "is an encoder-decoder model"),
        (RECURRENT, "cannot be rolled back"),
    ],
)
def test_others_are_refused_by_name(kinds: list[str], said: str):
    for kind in kinds:
        with pytest.raises(ModelError, match=said) as caught:
            refuse_unsupported(config(kind), "some/model")
        assert str(caught.value).startswith("some/model ")
        assert "; use " in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_encoder_made_into_a_decoder_is_served():
    refuse_unsupported(transformers.BertConfig(is_decoder=True), "some/model")
    refuse_unsupported(transformers.BertConfig(architectures=["BertLMHeadModel"]), "some/model")


def test_one_linear_attention_layer_is_enough_to_refuse():
    layers = ["full_attention", "linear_attention"]
    given = transformers.Qwen2Config(num_hidden_layers=2, layer_types=layers)
    with pytest.raises(ModelError, match="linear_attention"):
        refuse_unsupported(given, "some/model")


def test_a_loaded_model_that_says_it_is_stateful_is_refused():
    class Stateful:
        _is_stateful = True

    with pytest.raises(ModelError, match="Stateful"):
        refuse_stateful(Stateful(), "some/model")
