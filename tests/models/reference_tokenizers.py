"""What encodings must be, from sources that share no code with the tokenizers under test."""

from __future__ import annotations

import base64
import random
import unicodedata
from collections.abc import Callable
from functools import cache
from importlib import resources
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2 as protobuf

Encode = Callable[[str], list[int]]

_SCRIPTS = ((0, 127), (0xA0, 0x370), (0x370, 0x600), (0x900, 0x980), (0x4E00, 0x4E80), (0xAC00, 0xAC40))
_SYMBOLS = ((0x2580, 0x2600), (0x1F600, 0x1F640))
_BITS = ["\n", "  ", " ", "the", "ing", "<h1>", "7", "\t\t", "'LL", "'s", "\r\n", "1234", "é", "▁"]


@cache
def texts() -> list[str]:
    """Prose in many scripts, code, runs of one character, and random mixtures of everything."""
    samples = resources.files("anydraft.bench") / "samples"
    found = [p.read_text(encoding="utf-8") for p in samples.iterdir() if p.name.endswith(".txt")]
    found += [Path(module).read_text(encoding="utf-8") for module in (random.__file__, base64.__file__)]
    found += [c * n for c in " =-_\n\ta1▁😀#*/.eé中" for n in (*range(1, 40), 64, 127)]
    rng = random.Random(7)
    alphabet = [chr(c) for low, high in (*_SCRIPTS, *_SYMBOLS) for c in range(low, high)]
    for _ in range(700):
        pieces = [rng.choice(alphabet if rng.random() < 0.6 else _BITS) for _ in range(rng.randint(1, 60))]
        found.append("".join(pieces))
    return found


def qwen() -> Encode:
    """Qwen's own tiktoken ranks and pattern, as its maker publishes them."""
    spec = find_spec("dashscope")
    assert spec is not None and spec.submodule_search_locations
    lines = (
        (Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    )
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    encoding = tiktoken.Encoding("qwen", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: encoding.encode_ordinary(unicodedata.normalize("NFC", text))


def sentencepiece_of(metadata: dict[str, Any]) -> Encode:
    """SentencePiece itself, on a model file put together from the pieces, scores and types of a GGUF file."""
    model = protobuf.ModelProto()
    unknown = metadata["tokenizer.ggml.unknown_token_id"]
    pieces = zip(
        metadata["tokenizer.ggml.tokens"],
        metadata["tokenizer.ggml.scores"],
        metadata["tokenizer.ggml.token_type"],
        strict=True,
    )
    for index, (text, score, kind) in enumerate(pieces):
        # GGUF spells the spaces of user-defined pieces as spaces.
        model.pieces.add(piece=text.replace(" ", "▁"), score=score, type=2 if index == unknown else kind)
    model.trainer_spec.model_type = protobuf.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.unk_id = unknown
    model.trainer_spec.bos_id = metadata["tokenizer.ggml.bos_token_id"]
    model.trainer_spec.eos_id = metadata["tokenizer.ggml.eos_token_id"]
    model.trainer_spec.pad_id = -1
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = bool(metadata["tokenizer.ggml.add_space_prefix"])
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.SerializeToString())
    return processor.EncodeAsIds


_GPT2_WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def digits_then_gpt2(metadata: dict[str, Any]) -> Encode:
    """Every digit alone, GPT-2's words in between, merges by rank one at a time."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {b: chr(b) for b in printable}
    spelled |= {b: chr(0x100 + n) for n, b in enumerate(b for b in range(256) if b not in printable)}
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(metadata["tokenizer.ggml.merges"])}

    @cache
    def word_ids(word: str) -> tuple[int, ...]:
        # Bytes without a token (control characters, here) are lost before any merging.
        symbols = [spelled[b] for b in word.encode() if spelled[b] in ids]
        while len(symbols) > 1:
            pairs = [ranks.get(pair, len(ranks)) for pair in pairwise(symbols)]
            best = min(pairs)
            if best == len(ranks):
                break
            at = pairs.index(best)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return tuple(ids[s] for s in symbols)

    def encode(text: str) -> list[int]:
        words = (w for part in regex.split(r"(\p{N})", text) for w in _GPT2_WORDS.findall(part))
        return [i for word in words for i in word_ids(word)]

    return encode
