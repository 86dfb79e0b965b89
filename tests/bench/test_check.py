from __future__ import annotations

import json
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from anydraft.bench.check import OWN_TEXT, check
from anydraft.bench.check_text import to_markdown
from anydraft.bench.report import CheckReport
from anydraft.errors import TokenizerError
from anydraft.vocab.huggingface import byte_alphabet
from tests import tiny
from tests.bench.pairs import info

TEXTS = {"code": "def fib(n):\n    return n\n", "prose": "The quick brown fox is größer. 数学 😀"}


def bytes_only(*merged: str, normalizer: Any = None, chat: bool = False) -> Any:
    """Byte-level BPE over single bytes and the pieces that ``merged`` builds up letter by letter."""
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    merges = []
    for word in merged:
        for n in range(1, len(word)):
            if word[: n + 1] not in vocab:
                vocab[word[: n + 1]] = len(vocab)
                merges.append((word[:n], word[n]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", chat_template=tiny.CHATML if chat else None
    )


def different(**given: Any) -> CheckReport:
    """The byte-level target and the SentencePiece-like draft."""
    target = info(tiny.byte_level(), "big", num_parameters=10_000)
    return check(target, info(tiny.sentencepiece_like(), "small", **given), TEXTS)


def test_one_vocabulary_with_padded_rows_is_the_same():
    target = info(tiny.byte_level(), vocab_size=len(tiny.byte_level()) + 10, num_parameters=10_000)
    report = check(target, info(tiny.byte_level()), TEXTS)
    assert report.vocabulary.relation == "same"
    assert (report.advice.method, report.exit_code) == ("standard", 0)
    assert (report.target.padded_rows, report.draft.padded_rows) == (10, 0)
    assert all((t.expressible, t.forbidden, t.lost) == (1.0, 0.0, ()) for t in report.texts)
    assert "What the draft lacks" not in to_markdown(report)


def test_one_id_off_is_nearly_the_same_and_named():
    target = info(bytes_only("hello", "tomato"), num_parameters=10_000)
    report = check(target, info(bytes_only("hello", "tomata")), TEXTS)
    assert report.vocabulary.relation == "nearly the same"
    assert report.vocabulary.num_differing_ids == 1
    assert report.vocabulary.differing_ids == (264,)
    assert report.advice.method == "standard"
    assert "1 of 266 ids" in report.advice.why


def test_equal_sizes_with_different_contents_are_warned_about():
    report = different(vocab_size=len(tiny.byte_level()))
    assert report.vocabulary.relation == "different"
    assert report.vocabulary.equal_size
    assert any("different contents" in note and "corrupt" in note for note in report.advice.notes)
    assert not any("corrupt" in note for note in different().advice.notes)


def test_shares_are_counted_on_the_text():
    target, draft = bytes_only("aab"), bytes_only("ccd")
    report = check(info(target), info(draft), {"text": "aabaabzzccd"})
    (text,) = report.texts
    assert (text.num_bytes, text.target_tokens, text.draft_tokens) == (11, 7, 9)
    assert text.expressible == 5 / 7  # not aab, twice
    assert text.forbidden == pytest.approx(1 / 9)  # ccd
    assert text.target_bytes_per_token == 11 / 7
    assert text.draft_bytes_per_token == 11 / 9
    assert [(lost.text, lost.count) for lost in text.lost] == [("'aab'", 2)]


def test_different_vocabularies_are_translated_as_text():
    report = different()
    assert report.advice.method == "slem"
    assert report.exit_code == 0
    assert 0 < report.vocabulary.target_overlap < 1
    assert report.target.tokenizer == "byte-level BPE"
    assert report.draft.tokenizer == "SentencePiece BPE with byte fallback"
    assert (report.target.bos, report.draft.bos) == (None, "<bos>")


def test_the_reason_gives_the_ceilings_of_both_rules():
    report = different()
    strings = sum(t.best.string_rule for t in report.texts) / 2
    tokens = sum(t.best.token_rule for t in report.texts) / 2
    assert strings > tokens
    assert (
        f"{strings:.1f} target tokens a call by text (slem) and {tokens:.1f} by tokens (tli)"
        in report.advice.why
    )


def test_rows_that_only_fill_up_the_vocabulary_stand_for_nothing():
    filled = bytes_only("aab")
    filled.add_tokens(["<unused1>", "<unused2>"], special_tokens=True)
    report = check(info(filled, vocab_size=len(filled) + 3), info(bytes_only("ccd")), TEXTS)
    assert report.target.padded_rows == 5


def test_control_tokens_meet_by_role():
    controls = {c.target: c for c in different().controls}
    assert (controls["<|im_end|>"].draft, controls["<|im_end|>"].meeting) == ("<end_of_turn>", "by role")
    assert controls["<|im_end|>"].proposed
    assert controls["<|im_start|>"].draft is None
    assert "as text" in controls["<|im_start|>"].meeting
    assert next(c.role for c in different().controls) == "eos"


def test_a_draft_without_an_end_token_cannot_propose_a_stop():
    draft = bytes_only("aab")
    draft.eos_token = None
    ends = Tokenizer.from_str(draft.backend_tokenizer.to_str())
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(ends.model))
    bare.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    report = check(info(tiny.byte_level()), info(bare, num_parameters=1), TEXTS)
    assert any("cannot propose a stop" in note for note in report.advice.notes)
    assert not any("cannot propose" in note for note in different().advice.notes)
    assert all(c.draft is None and not c.proposed for c in report.controls)


@pytest.mark.parametrize(("size", "exit_code"), [(5_999, 0), (6_000, 0), (6_001, 1), (20_000, 1), (None, 0)])
def test_a_draft_that_is_not_small_is_not_advised(size: int | None, exit_code: int):
    report = different(num_parameters=size)
    assert report.exit_code == exit_code
    assert any("parameters" in reason for reason in report.advice.against) == bool(exit_code)
    assert ("Works, but is not advised" in to_markdown(report)) == bool(exit_code)


def test_a_draft_that_could_not_reach_two_tokens_is_not_advised():
    target = info(bytes_only("supercalifragilistic"), num_parameters=10_000)
    report = check(target, info(bytes_only("xyz")), {"word": "supercalifragilistic" * 20})
    assert report.advice.method == "slem"
    assert report.exit_code == 1
    assert "1.00 target tokens a call" in report.advice.against[0]


def test_a_kind_of_text_that_will_not_gain_is_named():
    target = info(bytes_only("supercalifragilistic", "q"), num_parameters=10_000)
    texts = {"words": "supercalifragilistic" * 20, "letters": "qwe rtz uio" * 20}
    report = check(target, info(bytes_only("xyz")), texts)
    assert report.exit_code == 0
    assert any(note.startswith("expect no gain on words:") for note in report.advice.notes)


def test_the_users_own_text_decides():
    target = info(bytes_only("supercalifragilistic"), num_parameters=10_000)
    draft = info(bytes_only("xyz"))
    letters, word = "qwe rtz uio" * 20, "supercalifragilistic" * 20
    against = check(target, draft, {"letters": letters}, own_text=word)
    assert [t.kind for t in against.texts] == [OWN_TEXT, "letters"]
    assert against.exit_code == 1
    assert check(target, draft, {"word": word}, own_text=letters).exit_code == 0


def test_a_normaliser_is_found_and_said_to_be_harmless():
    target = info(bytes_only("aab", normalizer=normalizers.NFC()), num_parameters=10_000)
    report = check(target, info(bytes_only("ccd")), {"plain": "abc", "accents": "cafe\u0301"})
    assert report.target.changes == ("letters with separate accents",)
    assert report.draft.changes == ()
    assert [(t.target_exact, t.draft_exact) for t in report.texts] == [(True, True), (False, True)]
    assert any("never correctness" in note for note in report.advice.notes)
    assert "not by target" in to_markdown(report)


def test_a_dummy_prefix_space_is_no_change_of_the_text():
    tokenizer = Tokenizer.from_str(tiny.sentencepiece_like().backend_tokenizer.to_str())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    prefixed = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    report = check(info(tiny.byte_level()), info(prefixed), TEXTS)
    assert report.draft.changes == ()
    assert all(t.draft_exact for t in report.texts)
    assert report.draft.tokenizer.endswith("dummy prefix space")


@pytest.mark.parametrize(
    ("target", "draft", "said"), [(False, True, "raw prompts only"), (True, False, "rendering")]
)
def test_a_missing_chat_template_is_said(target: bool, draft: bool, said: str):
    report = check(info(bytes_only("aab", chat=target)), info(bytes_only("ccd", chat=draft)), TEXTS)
    assert (report.target.chat_template, report.draft.chat_template) == (target, draft)
    assert any(said in note for note in report.advice.notes)


def test_a_shorter_context_of_the_draft_is_said():
    assert any("without loss" in note for note in different(max_context=64).advice.notes)
    assert not any("without loss" in note for note in different().advice.notes)


def test_a_tokenizer_without_exact_bytes_is_refused():
    words = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    wordpiece = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    with pytest.raises(TokenizerError, match="WordPiece"):
        check(info(tiny.byte_level()), info(wordpiece), TEXTS)


def test_the_report_is_json_and_markdown():
    report = different()
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (data["verdict"], data["exit_code"]) == ("works", 0)
    assert data["texts"][0]["best"]["string_rule"] == report.texts[0].best.string_rule
    assert data["advice"]["method"] == "slem"
    text = to_markdown(report)
    assert text.startswith("# big <- small\n")
    assert "\n| code " in text
    assert r"`<\|im_end\|>` (" in text  # a bar inside a table


def test_every_row_of_a_table_has_the_columns_of_its_head():
    columns = 0
    for line in to_markdown(different()).splitlines():
        count = line.replace(r"\|", "").count("|")
        if count and columns:
            assert count == columns, line
        columns = count
