from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anydraft.bench.best_case import best_case
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.readers import read_tokenizer
from tests import tiny
from tests.bench.pieces import Pieces


def of(text: str, target: Pieces, draft: Pieces):
    return best_case(text, target, draft, Bridge(target.vocabulary, draft.vocabulary))


def test_one_vocabulary_gives_all_draft_tokens_and_one_more():
    letters = Pieces("a", "b")
    best = of("abbab" * 6, letters, letters)
    assert (best.token_rule, best.string_rule) == (6.0, 6.0)


def test_a_last_step_that_is_not_full_counts_what_it_gives():
    letters = Pieces("a", "b")
    assert of("abab" + "babab" * 2, letters, letters).token_rule == 14 / 3


def test_merges_of_the_target_stop_the_token_rule_only():
    # Each step drafts a b a b a: two target tokens by text, none token by token; the target adds its own.
    best = of("ab" * 9, Pieces("ab", "a", "b"), Pieces("a", "b"))
    assert (best.token_rule, best.string_rule) == (1.0, 3.0)


def test_longer_tokens_of_the_draft_give_more_than_the_draft_drew():
    # A step drafts ab five times: ten target tokens by text, and the target's own c.
    best = of(("ab" * 5 + "c") * 2, Pieces(*"abc"), Pieces("ab", *"abc"))
    assert best.string_rule == 11.0


def test_pieces_that_are_too_long_for_five_draft_tokens_give_nothing():
    best = of("abcdef" * 4, Pieces("abcdef", *"abcdef"), Pieces(*"abcdef"))
    assert (best.token_rule, best.string_rule) == (1.0, 1.0)


def test_nothing_in_common_gives_the_targets_own_tokens():
    best = of("abab", Pieces("ab"), Pieces("a", "b"))
    assert best.token_rule == 1.0


def test_an_empty_text_is_one_token_a_call():
    letters = Pieces("a")
    assert of("", letters, letters).token_rule == 1.0


def test_a_translation_leans_on_what_stands_before_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    tails = []

    class Silent:
        def __init__(self, *given: object) -> None:
            pass

        def translate(self, tail: list[int], draft_ids: list[int]) -> list[int]:
            tails.append(list(tail))
            return []

    monkeypatch.setattr("anydraft.bench.best_case.Translator", Silent)
    letters = Pieces("a", "b")
    assert of("abbab", letters, letters).string_rule == 1.0
    assert tails == [[], [0], [0, 1], [0, 1, 1], [0, 1, 1, 0]]


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
@pytest.mark.parametrize("pair", ["bytes<-pieces", "pieces<-bytes"])
def test_every_text_ends_with_a_sane_figure(pair: str, text: str):
    tokenizers = [read_tokenizer(tiny.byte_level()), read_tokenizer(tiny.sentencepiece_like())]
    target, draft = tokenizers if pair == "bytes<-pieces" else tokenizers[::-1]
    best = best_case(text, target, draft, Bridge(target.vocabulary, draft.vocabulary))
    num_tokens = max(1, len(target.encode_continuation(text)))
    assert 1.0 <= best.token_rule <= min(6, num_tokens)
    assert 1.0 <= best.string_rule <= num_tokens
