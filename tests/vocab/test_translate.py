from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anydraft.vocab.bridge import Bridge
from anydraft.vocab.text import encode_bytes, incomplete_tail
from anydraft.vocab.translate import Translator
from anydraft.vocab.vocabulary import Role
from tests.vocab import real
from tests.vocab.corpus import REPETITIVE, TEXTS, random_text
from tests.vocab.worlds import LongestMatch, vocabulary

TURN, TEXT = (Role.EOS, "<|im_end|>"), (Role.EOS, "<|endoftext|>")


def translator(target: str, draft: str) -> Translator:
    bridge = real.bridge(target, draft)
    return Translator(real.tokenizer(target), bridge.draft, bridge)


def check(target: str, draft: str, known: list[int], drafted: list[int]) -> list[int]:
    """Translate; the proposal must be text with exactly the drafted bytes up to an open character."""
    bridge = real.bridge(target, draft)
    proposal = translator(target, draft).translate(known, drafted)
    tokens = bridge.target.tokens
    assert all(0 <= i < len(tokens) and tokens[i] for i in proposal)
    data, given_bytes = bridge.target.bytes_of(known), bridge.draft.bytes_of(drafted)
    done = bridge.target.bytes_of(proposal)
    assert given_bytes.startswith(done)
    open_end = data[len(data) - incomplete_tail(data) :]
    whole = (open_end + given_bytes).decode(errors="ignore").encode()
    if (open_end + given_bytes).startswith(whole) and len(whole) > len(open_end):
        assert open_end + done == whole
    return proposal


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_random_places_in_random_texts(target: str, draft: str) -> None:
    rng = random.Random(f"{target} {draft}")
    proposed = right = 0
    for _ in range(60):
        ids = real.tokenizer(target).encode(random_text(rng, 150))
        place = rng.randrange(1, len(ids))
        rest = real.tokenizer(target).vocabulary.bytes_of(ids[place:])
        drafted = encode_bytes(real.tokenizer(draft), rest, continuation=True)[: rng.randrange(1, 7)]
        proposal = check(target, draft, ids[:place], drafted)
        proposed += len(proposal)
        right += next(
            (n for n, (a, b) in enumerate(zip(proposal, ids[place:], strict=False)) if a != b), len(proposal)
        )
    assert right >= 0.75 * proposed > 0  # the last tokens may be cut short by the end of the draft


@settings(deadline=None, max_examples=150)
@given(
    st.text(min_size=1, max_size=30),
    st.lists(
        st.sampled_from([" ", "a", "\n", "é", "中", "😀", "1", "'s", ".", "\u0301", "\x00"]), max_size=8
    ),
    st.integers(0, 40),
    st.sampled_from(real.PAIRS),
)
def test_any_context_and_any_draft(
    context: str, following: list[str], cut: int, pair: tuple[str, str]
) -> None:
    target, draft = pair
    known = real.tokenizer(target).encode(context)[: cut + 1]
    drafted = real.tokenizer(draft).encode_continuation("".join(following))
    if target == "qwen2.5":  # composes; what it cannot write is not proposed
        proposal = translator(target, draft).translate(known, drafted)
        bridge = real.bridge(target, draft)
        assert bridge.draft.bytes_of(drafted).startswith(bridge.target.bytes_of(proposal))
    else:
        check(target, draft, known, drafted)


@pytest.mark.parametrize(("target", "draft"), real.PAIRS)
def test_random_draft_ids(target: str, draft: str) -> None:
    """Case 16, and bytes that are no text."""
    rng = random.Random(f"{target} {draft} ids")
    bridge = real.bridge(target, draft)
    single = [i for i in bridge.draft.byte_ids if i is not None]
    known = real.tokenizer(target).encode("The tide comes in twice a day, 潮")
    for _ in range(200):
        drafted = [rng.choice([rng.randrange(len(bridge.draft)), rng.choice(single)]) for _ in range(5)]
        proposal = translator(target, draft).translate(known[: rng.randrange(len(known) + 1)], drafted)
        assert all(0 <= i < len(bridge.target) for i in proposal)
        controls = [i for i in proposal if bridge.target.tokens[i] is None]
        assert controls in ([], proposal[-1:])
        assert set(controls) <= bridge.target.stop_ids


@pytest.mark.parametrize("name", REPETITIVE)
@pytest.mark.parametrize(
    ("target", "draft"), [("qwen2.5", "smollm2"), ("gemma3", "qwen2.5"), ("tekken", "gemma3")]
)
def test_every_round_of_a_repetitive_text_proposes(target: str, draft: str, name: str) -> None:
    """Case 13."""
    text = REPETITIVE[name]
    for place in range(1, 40):
        known = real.tokenizer(target).encode(text * 2)[:place]
        rest = (text * 4).encode()[len(real.tokenizer(target).vocabulary.bytes_of(known)) :]
        drafted = encode_bytes(real.tokenizer(draft), rest, continuation=True)[:5]
        assert check(target, draft, known, drafted)


def test_the_known_text_decides_how_the_draft_is_split() -> None:
    target = LongestMatch(vocabulary(b"a", b"b", b"ab", b"bb", b"x"))
    draft = vocabulary(b"b", b"x")
    translate = Translator(target, draft, Bridge(target.vocabulary, draft)).translate
    assert translate([4], [0, 0, 1]) == [3, 4]
    assert translate([4, 2], [0, 0, 1]) == [3, 4]
    # "a" + "bbx" would be ab|b|x: no boundary after "a", so the draft stands alone.
    assert translate([0], [0, 0, 1]) == [3, 4]


def test_only_the_last_tokens_are_encoded_again_and_none_across_a_control_token() -> None:
    class Recording(LongestMatch):
        def encode_continuation(self, text: str) -> list[int]:
            seen.append(text)
            return super().encode_continuation(text)

    seen: list[str] = []
    target = Recording(vocabulary(b"a", b"b", TURN, "é".encode(), b"\xa9"))
    draft = vocabulary(b"b")
    translate = Translator(target, draft, Bridge(target.vocabulary, draft)).translate
    translate([0] * 100, [0])
    translate([0, 2, 0], [0])
    translate([4, 0], [0])  # half a character in front
    translate([0, 4], [0])  # and at the end
    assert seen == ["a" * 8 + "b", "ab", "ab", "b"]


def test_an_end_maps_by_role_and_ends_the_proposal() -> None:
    """Case 10."""
    target = LongestMatch(vocabulary(b"a", TEXT, TURN, (Role.OTHER, "<|im_start|>")))
    draft = vocabulary(
        b"a", (Role.EOS, "<eos>"), (Role.EOS, "<end_of_turn>"), (Role.OTHER, "<|im_start|>"), None
    )
    translate = Translator(target, draft, Bridge(target.vocabulary, draft)).translate
    assert translate([0], [0, 2, 0]) == [0, 2]
    assert translate([0], [2]) == [2]
    assert translate([0], [0, 1]) == [0, 1]
    assert translate([0], [0, 3, 0]) == [0]  # no other control token is ever proposed
    assert translate([0], [0, 4, 0]) == [0]
    assert translate([0], [0, 5, 0]) == [0]
    assert translate([0], []) == []


def test_no_end_after_text_that_is_left_out() -> None:
    target = LongestMatch(vocabulary(b"a", TURN))
    draft = vocabulary(b"a", b"z", b"\xc3", TURN)
    translate = Translator(target, draft, Bridge(target.vocabulary, draft)).translate
    assert translate([0], [0, 1, 3]) == [0]  # the target has no z
    assert translate([0], [0, 2, 3]) == [0]
    assert translate([0], [0, 3]) == [0, 1]


def test_what_a_normalizer_changes_is_not_proposed() -> None:
    class Lowering(LongestMatch):
        def encode_continuation(self, text: str) -> list[int]:
            return super().encode_continuation(text.lower())

    target = Lowering(vocabulary(b"a", b"b", b"A", b"x"))
    draft = vocabulary(b"A", b"B", b"a", b"b")
    translate = Translator(target, draft, Bridge(target.vocabulary, draft)).translate
    assert translate([3], [2, 3]) == [0, 1]
    assert translate([3], [2, 1]) == [0]  # "b" is not the drafted "B"
    assert translate([3], [0, 1]) == [2]
    assert translate([3], [1, 0]) == []


def test_an_unfinished_character_is_not_proposed() -> None:
    """Case 7."""
    for target, draft in [("qwen2.5", "smollm2"), ("gemma3", "smollm2"), ("smollm2", "tekken")]:
        bridge = real.bridge(target, draft)
        known = real.tokenizer(target).encode("Fun: ")
        party = [bridge.draft.byte_ids[b] for b in "🎉".encode()]
        ids = [bridge.draft.byte_ids[ord("x")], *party]
        assert None not in ids
        for n in range(1, 5):
            assert bridge.target.bytes_of(check(target, draft, known, ids[:n])) == b"x"  # type: ignore[arg-type]
        assert bridge.target.bytes_of(check(target, draft, known, ids)) == "x🎉".encode()  # type: ignore[arg-type]


@pytest.mark.parametrize("character", ["é", "中", "🎉"])
@pytest.mark.parametrize(
    ("target", "draft"), [("qwen2.5", "smollm2"), ("gemma3", "qwen2.5"), ("tekken", "deepseek")]
)
def test_the_draft_completes_the_targets_open_character(target: str, draft: str, character: str) -> None:
    """Case 7, the other side: the target's own last token ended in the middle of a character."""
    bridge = real.bridge(target, draft)
    data = character.encode()
    for cut in range(1, len(data)):
        known = real.tokenizer(target).encode("Hello ") + [bridge.target.byte_ids[b] for b in data[:cut]]
        drafted = encode_bytes(real.tokenizer(draft), data[cut:] + b" and", continuation=True)
        proposal = check(target, draft, known, drafted)
        assert bridge.target.bytes_of(proposal) == data[cut:] + b" and"
        wrong = encode_bytes(real.tokenizer(draft), b"x", continuation=True)
        assert translator(target, draft).translate(known, wrong) == []


def test_every_text_is_translated_whole() -> None:
    for name, text in TEXTS.items():
        if name == "latin":
            continue
        for target, draft in [("gemma3", "qwen2.5"), ("qwen2.5", "gemma3")]:
            ids = real.tokenizer(draft).encode_continuation(text)
            known = real.tokenizer(target).encode("So: ")
            proposal = check(target, draft, known, ids)
            assert real.tokenizer(target).vocabulary.bytes_of(proposal) == text.encode()
