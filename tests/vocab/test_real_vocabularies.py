"""The readers and the bridge on the real tokenizers."""

from __future__ import annotations

import random
import unicodedata

import numpy as np
import pytest

from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.vocabulary import Role
from tests.vocab import real
from tests.vocab.corpus import REPETITIVE, TEXTS, random_text

NFC = {"qwen2.5"}
"""Tokenizers whose own normaliser composes characters."""


def _expected(name: str, text: str) -> bytes:
    return (unicodedata.normalize("NFC", text) if name in NFC else text).encode()


@pytest.mark.parametrize("name", real.NAMES)
def test_tokens_of_a_text_are_its_bytes(name: str) -> None:
    tokenizer = real.tokenizer(name)
    rng = random.Random(name)
    texts = [*TEXTS.values(), *REPETITIVE.values(), *(random_text(rng, 200) for _ in range(100))]
    start = b" " if tokenizer.vocabulary.dummy_prefix else b""
    has_all = None not in tokenizer.vocabulary.byte_ids
    for text in texts:
        if not has_all:  # SmolLM2 has no token for 21 of the bytes, among them U+0004
            text = "".join(c for c in text if _has_bytes(name, c))
        expected = _expected(name, text)
        assert tokenizer.vocabulary.bytes_of(tokenizer.encode(text)) == start + expected
        assert tokenizer.vocabulary.bytes_of(tokenizer.encode_continuation(text)) == expected


def _has_bytes(name: str, character: str) -> bool:
    byte_ids = real.tokenizer(name).vocabulary.byte_ids
    return all(byte_ids[b] is not None for b in character.encode())


@pytest.mark.parametrize("name", real.NAMES)
def test_no_text_encodes_to_a_control_token(name: str) -> None:
    tokenizer = real.tokenizer(name)
    surfaces = [c.surface for c in tokenizer.vocabulary.controls.values()]
    for text in [*surfaces, *("a" + s + " b" for s in surfaces)]:
        for ids in (tokenizer.encode(text), tokenizer.encode_continuation(text)):
            assert None not in [tokenizer.vocabulary.tokens[i] for i in ids], text


@pytest.mark.parametrize("name", [*real.PACKAGED, "deepseek"])
def test_ids_are_the_ones_of_the_tokenizer_itself(name: str) -> None:
    original, tokenizer = real.original(name), real.tokenizer(name)
    encode = original.encode
    for text in [t for key, t in (TEXTS | REPETITIVE).items() if key != "markers"]:
        ids = encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == (ids.ids if hasattr(ids, "ids") else ids)


@pytest.mark.parametrize(
    ("name", "bos", "eos", "ends", "size"),
    [
        ("smollm2", None, "<|im_end|>", {"<|im_end|>", "<|endoftext|>"}, 49_152),
        ("qwen2.5", None, "<|im_end|>", {"<|im_end|>", "<|endoftext|>"}, 151_665),
        ("gemma3", "<bos>", "<eos>", {"<eos>", "<end_of_turn>"}, 262_144),
        ("mistral-32k", "<s>", "</s>", {"</s>"}, 32_000),
        ("tekken", "<s>", "</s>", {"</s>"}, 131_072),
        ("deepseek", None, None, {"<｜end▁of▁sentence｜>"}, 129_280),
        ("qwen-tiktoken", None, None, {"<|im_end|>", "<|endoftext|>"}, 151_851),
    ],
)
def test_roles(name: str, bos: str | None, eos: str | None, ends: set[str], size: int) -> None:
    vocabulary = real.tokenizer(name).vocabulary
    surface = {i: c.surface for i, c in vocabulary.controls.items()}
    assert surface.get(vocabulary.bos_id) == bos  # type: ignore[arg-type]
    assert surface.get(vocabulary.eos_id) == eos  # type: ignore[arg-type]
    assert {surface[i] for i in vocabulary.stop_ids} == ends
    assert all(c.role is Role.EOS for i, c in vocabulary.controls.items() if i in vocabulary.stop_ids)
    assert 0 <= size - len(vocabulary) <= (6_242 if name == "gemma3" else 0)
    assert not any(b for i, b in enumerate(vocabulary.tokens) if i in vocabulary.controls)


def test_gemma_keeps_its_text_pieces_and_loses_its_fillers() -> None:
    vocabulary = real.tokenizer("gemma3").vocabulary
    tokens = vocabulary.tokens
    assert (tokens[107], tokens[108], tokens[138]) == (b"\n", b"\n\n", b"  ")
    assert tokens[168] == b"<table>"
    assert tokens[6:106] == (None,) * 100  # <unused0> and so on, <start_of_turn>
    assert [c.surface for c in vocabulary.controls.values()] == [
        "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>",
    ]  # fmt: skip
    assert None not in vocabulary.byte_ids


@pytest.mark.parametrize(
    ("target", "draft", "shared"),
    [("qwen2.5", "smollm2", 39_234), ("qwen2.5", "gemma3", 95_968), ("smollm2", "gemma3", 46_145)],
)
def test_intersections_have_the_measured_sizes(target: str, draft: str, shared: int) -> None:
    bridge = real.bridge(target, draft)
    text = [i for i in bridge.intersection if bridge.draft.tokens[i]]
    assert len(np.unique(bridge.draft_to_target[text])) == shared


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_every_pair_matches_by_bytes_alone(target: str, draft: str) -> None:
    """Case 5: no pair is missed, none is false."""
    bridge = real.bridge(target, draft)
    targets, drafts = bridge.target.tokens, bridge.draft.tokens
    known = {b for b in targets if b}
    for i, j in enumerate(bridge.draft_to_target):
        if drafts[i]:
            assert (targets[j] == drafts[i]) if j >= 0 else drafts[i] not in known
        elif j >= 0:
            assert i in bridge.draft.controls
            assert j in bridge.target.controls
    for j, i in enumerate(bridge.target_to_draft):
        if targets[j] and i >= 0:
            assert targets[j] == drafts[i]


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_the_newline_the_tab_and_accents_meet(target: str, draft: str) -> None:
    """Case 5: not the literal Ċ of another vocabulary."""
    bridge = real.bridge(target, draft)
    for text in (b"\n", b"\t", b" the", b"\xc3\xa9"):
        i = bridge.draft.tokens.index(text) if text in bridge.draft.tokens else None
        if i is not None and text in bridge.target.tokens:
            assert bridge.target.tokens[bridge.draft_to_target[i]] == text


def test_qwen_files_of_two_makers_are_the_same_vocabulary() -> None:
    """Cases 3 and 16: 151,851 ids against 151,665 (151,936 rows); nothing crosses beyond the smaller."""
    bridge = real.bridge("qwen2.5", "qwen-tiktoken")
    assert bridge.same_vocabulary
    common = np.arange(151_643)
    assert np.array_equal(bridge.draft_to_target[common], common)
    assert np.array_equal(bridge.target_to_draft[common], common)
    assert (bridge.draft_to_target < len(bridge.target)).all()
    assert (bridge.draft_to_target[151_646:] == -1).all()


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_ids_stay_within_their_vocabulary(target: str, draft: str) -> None:
    """Case 16, on every pair."""
    bridge = real.bridge(target, draft)
    assert bridge.draft_to_target.max() < len(bridge.target)
    assert bridge.target_to_draft.max() < len(bridge.draft)
    assert not bridge.nearly_same or {target, draft} == {"qwen2.5", "qwen-tiktoken"}


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_every_end_has_a_counterpart(target: str, draft: str) -> None:
    """Case 10: end-of-turn maps by role."""
    bridge = real.bridge(target, draft)
    for i in bridge.draft.stop_ids:
        assert bridge.draft_to_target[i] in bridge.target.stop_ids
    for i in bridge.target.stop_ids:
        assert bridge.target_to_draft[i] in bridge.draft.stop_ids


def test_turns_of_chatml_and_gemma_meet() -> None:
    bridge = real.bridge("qwen2.5", "gemma3")
    target, draft = bridge.target.controls, bridge.draft.controls
    ends = {draft[i].surface: target[bridge.draft_to_target[i]].surface for i in bridge.draft.stop_ids}
    assert ends == {"<eos>": "<|endoftext|>", "<end_of_turn>": "<|im_end|>"}


def test_reading_again_gives_the_same_fingerprint() -> None:
    again = read_tokenizer(real.original("smollm2")).vocabulary
    assert again.fingerprint == real.tokenizer("smollm2").vocabulary.fingerprint
    assert again.fingerprint != real.tokenizer("qwen2.5").vocabulary.fingerprint
