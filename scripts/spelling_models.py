"""Pairs of models of real shapes with random weights that spell the same text, each in its own tokens.

Where weights cannot be brought, they show what real ones would cost: every layer computes as usual, and adds nothing.
What the next token is follows from the last one alone, by the LM head. So a draft of another vocabulary is accepted
nearly throughout, and no rounding changes a text: the best logit is far above all others.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import transformers

TEXT = string.ascii_letters + string.digits + string.punctuation
"""No character twice, so no token either: each has one that follows it, and the last one is followed by the first."""
STARTS = tuple(TEXT[:length] for length in (28, 24, 20, 16))
"""Prompts, a row each. With some sixty tokens more nothing is said twice, so that auto has nothing to copy."""
K = 4
"""Draft tokens a step."""
_PEAK = 30.0
"""Logit of the token that follows; those of others are about normal."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama; ``vocab_size`` is the LM head's and may exceed the tokenizer's."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int = 2048

    @property
    def sizes(self) -> dict[str, int]:
        """As a config takes them."""
        return {name: value for name, value in vars(self).items() if name != "name"}


QWEN_7B = Shape("7B (of Qwen2.5)", 152064, 3584, 18944, 28, 28, 4)
QWEN_1_5B = Shape("1.5B (of Qwen2.5)", 151936, 1536, 8960, 28, 12, 2)
SMOLLM2_135M = Shape("135M (of SmolLM2)", 49152, 576, 1536, 30, 9, 3)
SMALL, SMALLER = Shape("small", 600, 128, 256, 2, 4, 2), Shape("smaller", 600, 64, 128, 2, 2, 1)
"""To try the checks themselves on a CPU."""


def spelling_model(shape: Shape, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A Llama that spells :data:`TEXT` over and over, from the end of any token in it."""
    config = transformers.LlamaConfig(
        **shape.sizes,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with _default(dtype), device:
        model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.normal_()
        # After the last norm an embedding is about itself, of length sqrt(hidden_size).
        head.normal_(std=shape.hidden_size**-0.5)
        ids = tokenizer.encode(2 * TEXT, add_special_tokens=False)
        for token, following in set(pairwise(ids)):
            head[following] = embedding[token] * (_PEAK / shape.hidden_size)
    return model


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
