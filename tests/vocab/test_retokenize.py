"""The draft's context: equal to a full re-encode after every step, on the real tokenizers."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from anydraft.vocab.bridge import Bridge
from anydraft.vocab.huggingface import byte_alphabet
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.retokenize import DraftContext
from anydraft.vocab.text import encode_bytes
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Role, Vocabulary
from tests.vocab import real
from tests.vocab.corpus import REPETITIVE, TEXTS, random_text
from tests.vocab.worlds import LongestMatch, vocabulary

TURN, TEXT = (Role.EOS, "<|im_end|>"), (Role.EOS, "<|endoftext|>")


def whole(
    draft: Tokenizer, bridge: Bridge, target_ids: Sequence[int], prefix: Sequence[int] = ()
) -> list[int]:
    """The draft's ids of all of ``target_ids``, tokenized at once: what a context must hold."""
    controls = draft.vocabulary.controls
    starts = all(i in controls and controls[i].role is Role.BOS for i in prefix)
    strip = starts and bridge.target.dummy_prefix
    runs: list[bytes | int] = [b""]
    for i in target_ids:
        control = bridge.target.controls.get(i)
        if control is None:
            data = bridge.target.bytes_of([i])
            if strip and data:
                data, strip = data.removeprefix(b" "), False
            runs[-1] += data  # type: ignore[operator]
        elif control.role in (Role.BOS, Role.PAD, Role.UNK):
            continue
        elif (mapped := int(bridge.target_to_draft[i])) >= 0:
            runs += [mapped, b""]
            strip = False
        else:
            runs[-1] += control.surface.encode()  # type: ignore[operator]
    ids = list(prefix)
    for number, run in enumerate(runs):
        if isinstance(run, int):
            ids.append(run)
        else:
            ids += encode_bytes(draft, run, continuation=not (starts and number == 0))
    return ids


def follow(
    draft: Tokenizer, bridge: Bridge, steps: list[list[int]], prefix: Sequence[int] = (), every: int = 1
) -> DraftContext:
    """Append step by step, comparing with the whole tokenization after each (or each ``every``-th)."""
    context = DraftContext(draft, bridge, prefix)
    seen: list[int] = []
    for number, step in enumerate(steps):
        old = list(context.ids)
        stable = context.append(step)
        seen += step
        assert stable <= min(len(old), len(context.ids))
        assert context.ids[:stable] == old[:stable]
        assert len(context.ids) == stable or len(old) == stable or context.ids[stable] != old[stable]
        if number % every == 0 or number == len(steps) - 1:
            assert context.ids == whole(draft, bridge, seen, prefix)
    return context


def in_steps(rng: random.Random, ids: Sequence[int], first: int = 0) -> list[list[int]]:
    """Cut ids into steps of 1 to 5, after a first of length ``first``."""
    steps, at = [list(ids[:first])], first
    while at < len(ids):
        n = rng.choice([1, 1, 2, 3, 5])
        steps.append(list(ids[at : at + n]))
        at += n
    return steps


def bos(vocabulary: Vocabulary) -> list[int]:
    return [] if vocabulary.bos_id is None else [vocabulary.bos_id]


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_random_texts_in_random_steps(target: str, draft: str) -> None:
    rng = random.Random(f"{target} {draft}")
    bridge = real.bridge(target, draft)
    for length, first in [(300, 0), (1500, 200)]:
        ids = real.tokenizer(target).encode(random_text(rng, length))
        follow(real.tokenizer(draft), bridge, in_steps(rng, ids, first), bos(bridge.draft), every=7)


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_random_ids_whose_bytes_are_often_no_text(target: str, draft: str) -> None:
    """Case 16 as well: ids beyond the vocabulary and unused ones are nothing."""
    rng = random.Random(f"{target} {draft} ids")
    bridge = real.bridge(target, draft)
    single = [i for i in bridge.target.byte_ids if i is not None]
    controls = list(bridge.target.controls)
    size = len(bridge.target)
    ids = [
        rng.choice([rng.randrange(size), rng.choice(single), rng.choice(single)])
        if rng.random() < 0.97
        else rng.choice([rng.choice(controls), size, size + 1000])
        for _ in range(500)
    ]
    follow(real.tokenizer(draft), bridge, in_steps(rng, ids), every=7)


@pytest.mark.parametrize("draft", real.NAMES)
@pytest.mark.parametrize("name", [*TEXTS, *REPETITIVE])
def test_each_text_token_by_token(draft: str, name: str) -> None:
    """Case 13: very repetitive texts among them."""
    target = "smollm2" if draft != "smollm2" else "gemma3"
    ids = real.tokenizer(target).encode((TEXTS | REPETITIVE)[name])
    follow(real.tokenizer(draft), real.bridge(target, draft), [[i] for i in ids], every=5)


ALPHABET = st.one_of(
    st.sampled_from(
        ["a", " ", "\n", "  ", "\t", "1", "'s", " the", "def ", "é", "中", "😀", "\u0301", "(", "."]
    ),
    st.sampled_from(list(TEXTS.values())),
    st.text(max_size=4),
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(ALPHABET, max_size=40).map("".join),
    st.lists(st.integers(1, 6), min_size=1, max_size=30),
    st.sampled_from(real.PAIRS),
)
def test_any_text_in_any_steps(text: str, lengths: list[int], pair: tuple[str, str]) -> None:
    target, draft = pair
    ids = real.tokenizer(target).encode(text)
    steps, at = [], 0
    while at < len(ids):
        n = lengths[len(steps) % len(lengths)]
        steps.append(ids[at : at + n])
        at += n
    bridge = real.bridge(target, draft)
    follow(real.tokenizer(draft), bridge, steps, bos(bridge.draft))


def _normalizing() -> Tokenizer:
    """Byte-level BPE that composes, folds case and strips: bytes of tokens are not bytes of the text."""
    vocab = byte_alphabet() | {"he": 256, "Ġt": 257, "Ġthe": 258}
    tokenizer = HubTokenizer(models.BPE(vocab, [("h", "e"), ("Ġ", "t"), ("Ġt", "he")]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return read_tokenizer(tokenizer)


def test_a_tokenizer_that_normalizes() -> None:
    rng = random.Random(5)
    draft, target = _normalizing(), real.tokenizer("smollm2")
    bridge = Bridge(target.vocabulary, draft.vocabulary)
    for _ in range(8):
        ids = target.encode(random_text(rng, 1000))
        follow(draft, bridge, in_steps(rng, ids, rng.choice([0, 300])), every=9)


class Recording:
    """A tokenizer that counts the bytes it is asked to encode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocabulary = tokenizer.vocabulary
        self.num_bytes = 0

    def encode(self, text: str) -> list[int]:
        self.num_bytes += len(text.encode())
        return self._tokenizer.encode(text)

    def encode_continuation(self, text: str) -> list[int]:
        self.num_bytes += len(text.encode())
        return self._tokenizer.encode_continuation(text)


@pytest.mark.parametrize(
    ("target", "draft"), [("qwen2.5", "smollm2"), ("qwen2.5", "gemma3"), ("gemma3", "mistral-32k")]
)
def test_work_a_step_does_not_grow_with_the_context(target: str, draft: str) -> None:
    """A step after 100,000 tokens encodes as little as one after 100, and is still exact."""
    bridge = real.bridge(target, draft)
    once = real.tokenizer(target).encode("".join(TEXTS.values()))
    new = [once[at : at + 3] for at in range(0, 300, 3)]
    most = {}
    for length in (100, 100_000):
        ids = (once * (1 + length // len(once)))[:length]
        recording = Recording(real.tokenizer(draft))
        context = DraftContext(recording, bridge)
        context.append(ids)
        most[length] = 0
        for step in new:
            recording.num_bytes = 0
            context.append(step)
            most[length] = max(most[length], recording.num_bytes)
        assert context.ids == whole(real.tokenizer(draft), bridge, ids + once[:300])
    assert most[100_000] <= 2_000
    assert most[100_000] <= 2 * most[100]


@pytest.mark.parametrize("draft", real.NAMES)
@pytest.mark.parametrize("character", ["a", "1", "中", "\n", " ", "🎉", "-"])
def test_a_hundred_thousand_equal_characters_are_bounded_work(draft: str, character: str) -> None:
    target = vocabulary(character.encode() * 2, b".")
    recording = Recording(real.tokenizer(draft))
    bridge = Bridge(target, recording.vocabulary)
    context = DraftContext(recording, bridge)
    context.append([0] * 50_000)
    for _ in range(300):
        recording.num_bytes = 0
        context.append([0, 0])
        assert recording.num_bytes < 8_000
    start = b" " if recording.vocabulary.dummy_prefix else b""
    assert recording.vocabulary.bytes_of(context.ids) == start + character.encode() * 101_200


@pytest.mark.parametrize("draft", real.NAMES)
def test_text_without_any_edge_of_a_word_is_exact_as_well(draft: str) -> None:
    rng = random.Random(draft)
    target = "smollm2" if draft != "smollm2" else "gemma3"
    for low, high in [(0x4E00, 0x9FA5), (0x61, 0x7A)]:
        text = "".join(chr(rng.randint(low, high)) for _ in range(3_000 if low < 128 else 1_200))
        steps = in_steps(rng, real.tokenizer(target).encode(text))
        follow(real.tokenizer(draft), real.bridge(target, draft), steps, every=100)


class Unsplittable:
    """One token for the whole text, whatever its length: no cut is ever harmless."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary((b"some word ",) * 2**16)
        self.num_bytes = 0

    def encode(self, text: str) -> list[int]:
        return self.encode_continuation(text)

    def encode_continuation(self, text: str) -> list[int]:
        self.num_bytes += len(text.encode())
        return [zlib.crc32(text.encode()) % 2**16]


def test_without_any_harmless_cut_the_work_is_bounded_all_the_same() -> None:
    target, draft = vocabulary(b"some word ", b"x"), Unsplittable()
    context = DraftContext(draft, Bridge(target, draft.vocabulary))
    for _ in range(1000):
        old = list(context.ids)
        draft.num_bytes = 0
        stable = context.append([0])
        assert context.ids[:stable] == old[:stable]
        assert draft.num_bytes < 20_000
    assert 5 < len(context.ids) < 20


def test_a_token_that_forms_long_after_its_beginning_is_not_cut() -> None:
    """The first bytes of such a token look harmless until its last one comes."""
    rng = random.Random(1)
    draft = LongestMatch(vocabulary(b"a", b" ", b"y", b"a " + b"y" * 40))
    target = vocabulary(b"a", b" ", b"y")
    text = b"".join(b"a " * rng.randrange(1, 99) + b"y" * 40 + b" " for _ in range(30))
    steps = [[b"a y".index(byte)] for byte in text]
    follow(draft, Bridge(target, draft.vocabulary), steps, every=50)


def test_the_context_gets_shorter() -> None:
    """Case 1: it ends in "un", the step emits "related", and both ids become one."""
    draft = LongestMatch(vocabulary(b"un", b"related", b"unrelated", b" "))
    target = vocabulary(b" ", b"un", b"related", b" unrelated")
    context = DraftContext(draft, Bridge(target, draft.vocabulary))
    assert context.append([0, 1]) == 0
    assert context.ids == [3, 0]
    assert context.append([2]) == 1
    assert context.ids == [3, 2]
    assert context.append([0, 1]) == 2
    assert context.ids == [3, 2, 3, 0]


def test_a_real_context_gets_shorter() -> None:
    """Case 1, on real tokenizers: a step that leaves fewer ids than there were."""
    bridge, draft = real.bridge("smollm2", "gemma3"), real.tokenizer("gemma3")
    ids = [i for b in b"unbelievable" if (i := bridge.target.byte_ids[b]) is not None]
    context = DraftContext(draft, bridge)
    sizes = []
    for i in ids:
        context.append([i])
        sizes.append(len(context.ids))
    assert any(after < before for before, after in pairwise(sizes))
    assert context.ids == draft.encode("unbelievable")


@pytest.mark.parametrize("draft", ["gemma3", "mistral-32k", "tekken"])
def test_exactly_one_bos(draft: str) -> None:
    """Case 2: with a target that has a BOS, too, and one that has none."""
    for target in ("qwen2.5", "gemma3" if draft != "gemma3" else "mistral-32k"):
        bridge = real.bridge(target, draft)
        tokenizer = real.tokenizer(target)
        context = DraftContext(real.tokenizer(draft), bridge, bos(bridge.draft))
        steps = [
            bos(bridge.target) + tokenizer.encode("Once upon"),
            tokenizer.encode_continuation(" a time"),
            bos(bridge.target),
        ]
        for step in steps * 20:
            context.append(step)
            assert context.ids.count(bridge.draft.bos_id) == 1
            assert context.ids[0] == bridge.draft.bos_id


def test_the_drafts_own_chat_rendering_is_never_encoded_again() -> None:
    draft = real.tokenizer("smollm2")
    bridge = real.bridge("gemma3", "smollm2")
    prefix = [1, *draft.encode("user\nHi"), 2, *draft.encode("\n"), 1, *draft.encode("assistant\n")]
    target = real.tokenizer("gemma3")
    context = DraftContext(draft, bridge, prefix)
    context.append(target.encode_continuation("\n\nHello there"))
    assert context.ids == prefix + draft.encode_continuation("\n\nHello there")


def test_text_outside_the_intersection_reaches_the_draft_as_text() -> None:
    """Case 6: indentation, numbers and markers that the draft has no such token for."""
    bridge, draft = real.bridge("gemma3", "smollm2"), real.tokenizer("smollm2")
    text = "if x:\n" + " " * 23 + "return 12345\n\n\n\n<table>"
    ids = real.tokenizer("gemma3").encode(text)
    assert (bridge.target_to_draft[ids] < 0).any()
    context = DraftContext(draft, bridge)
    context.append(ids)
    assert context.ids == draft.encode(text)


def test_control_tokens_by_role_by_surface_or_as_text() -> None:
    """Case 10."""
    target = vocabulary(
        b"a",
        (Role.BOS, "<s>"),
        (Role.EOS, "<end_of_turn>"),
        (Role.OTHER, "[INST]"),
        (Role.OTHER, "<t>"),
        (Role.PAD, "<pad>"),
        (Role.UNK, "<unk>"),
        None,
    )
    draft = LongestMatch(
        vocabulary(b"a", b"<", b"t", b">", TURN, (Role.OTHER, "[INST]"), (Role.BOS, "<bos>"), bos_id=6)
    )
    bridge = Bridge(target, draft.vocabulary)
    context = DraftContext(draft, bridge, [6])
    context.append([1, 0, 3, 0, 0, 2, 4, 5, 6, 7, 99, -1, 0])
    assert context.ids == [6, 0, 5, 0, 0, 4, 1, 2, 3, 0]


def test_text_does_not_merge_across_a_control_token() -> None:
    draft = LongestMatch(vocabulary(b"a", b"b", b"ab", TURN))
    context = DraftContext(draft, Bridge(vocabulary(b"a", b"b", TURN), draft.vocabulary))
    assert context.append([0]) == 0
    assert context.append([2, 1]) == 1
    assert context.ids == [0, 3, 1]


def test_bytes_of_an_open_character_are_held_as_single_bytes_until_it_is_complete() -> None:
    draft = LongestMatch(vocabulary("é".encode(), b"\xc3", b"x", b"\xf0"))
    target = vocabulary(b"x", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80")
    context = DraftContext(draft, Bridge(target, draft.vocabulary))
    assert context.append([0, 1]) == 0
    assert context.ids == [2, 1]
    assert context.append([2]) == 1  # the byte is replaced by its character
    assert context.ids == [2, 0]
    assert context.append([3]) == 2
    assert context.ids == [2, 0, 3]  # of F0 9F the draft has only the first byte


def test_the_targets_dummy_space_is_no_text() -> None:
    bridge = real.bridge("mistral-32k", "qwen2.5")
    target, draft = real.tokenizer("mistral-32k"), real.tokenizer("qwen2.5")
    context = DraftContext(draft, bridge)
    context.append(bos(bridge.target) + target.encode("Hello"))
    assert context.ids == draft.encode("Hello")
    context.append(target.encode_continuation(" world"))
    assert context.ids == draft.encode("Hello world")


def test_text_after_a_control_token_is_no_start_of_a_document() -> None:
    qwen, mistral = real.tokenizer("qwen2.5"), real.tokenizer("mistral-32k")
    context = DraftContext(mistral, real.bridge("qwen2.5", "mistral-32k"))
    context.append([qwen.vocabulary.eos_id, *qwen.encode("Hello")])  # type: ignore[list-item]
    assert context.ids == [mistral.vocabulary.eos_id, *mistral.encode_continuation("Hello")]
    context = DraftContext(qwen, real.bridge("mistral-32k", "qwen2.5"))
    context.append([mistral.vocabulary.eos_id, *mistral.encode_continuation(" Hello")])  # type: ignore[list-item]
    assert context.ids == [qwen.vocabulary.eos_id, *qwen.encode(" Hello")]


def test_rejected_drafts_leave_no_trace() -> None:
    """Case 14: a context only ever sees what was emitted, whatever was proposed in between."""
    bridge, draft = real.bridge("qwen2.5", "smollm2"), real.tokenizer("smollm2")
    ids = real.tokenizer("qwen2.5").encode("The tide comes in twice a day.")
    context = DraftContext(draft, bridge)
    for i in ids:
        context.append([i])
        assert context.append([]) == len(context.ids)
    assert context.ids == draft.encode("The tide comes in twice a day.")
