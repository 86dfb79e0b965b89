"""Readers on tokenizers small enough to know by heart."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from anydraft.errors import TokenizerError, UsageError
from anydraft.vocab.huggingface import byte_alphabet
from anydraft.vocab.readers import read_tokenizer
from anydraft.vocab.vocabulary import Role

SPECIALS = ["<unk>", "<s>", "</s>", "<pad>"]


def byte_level(pieces: list[str] = (), merges: list[tuple[str, str]] = (), **options: Any) -> Tokenizer:  # type: ignore[assignment]
    """Byte-level BPE: the 256 bytes, then ``pieces``."""
    vocab = byte_alphabet() | {p: 256 + i for i, p in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, list(merges), **options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_like(pieces: list[str], merges: list[tuple[str, str]] = (), **options: Any) -> Tokenizer:  # type: ignore[assignment]
    """Special tokens 0 to 3, byte pieces 4 to 259, then ``pieces``."""
    everything = [*SPECIALS, *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    model = models.BPE(
        {p: i for i, p in enumerate(everything)},
        list(merges),
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
        **options,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def test_the_byte_alphabet_is_the_one_of_the_tokenizers_library() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    text = "".join(map(chr, range(0x250)))
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]
    assert bytes(alphabet[c] for c in spelled) == text.encode()


def _in_sequence(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        ]
    )
    tokenizer.decoder = decoders.Fuse()


def _as_decoder_only(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d"), "isolated")


def _as_normalizer(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.ByteLevel()
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Fuse()


@pytest.mark.parametrize("change", [lambda t: None, _in_sequence, _as_decoder_only, _as_normalizer])
def test_byte_level_is_seen_wherever_it_stands(change: Any) -> None:
    tokenizer = byte_level(["Ġa", "é"], [("Ġ", "a")])
    change(tokenizer)
    vocabulary = read_tokenizer(tokenizer).vocabulary
    assert vocabulary.tokens[0x0A] == b"\n"
    assert vocabulary.tokens[256:] == (b" a", b"\xe9")  # é is the alphabet's character for the byte E9


def test_sentencepiece_pieces_and_byte_fallback() -> None:
    tokenizer = read_tokenizer(sentencepiece_like(["▁", "A", "▁▁", "é"], [("▁", "▁")]))
    vocabulary = tokenizer.vocabulary
    assert vocabulary.tokens[4:260] == tuple(bytes([b]) for b in range(256))
    assert vocabulary.tokens[260:] == (b" ", b"A", b"  ", "é".encode())
    assert vocabulary.byte_fallback == frozenset(range(4, 260))
    assert vocabulary.byte_ids[ord("A")] == 261  # the piece, not <0x41>
    assert tokenizer.encode("A\t  é") == [261, 4 + 9, 262, 263]


def test_unigram_with_metaspace() -> None:
    pieces = [("<unk>", 0.0), ("▁", -3.0), ("▁ab", -1.0), ("a", -2.0), ("b", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>"])
    read = read_tokenizer(tokenizer)
    assert read.vocabulary.tokens == (None, b" ", b" ab", b"a", b"b")
    assert read.vocabulary.controls[0].role is Role.UNK
    assert read.vocabulary.dummy_prefix
    assert (read.encode("ab"), read.encode_continuation("ab")) == ([2], [3, 4])


def test_roles_of_control_tokens_and_texts_that_are_wrongly_marked_special() -> None:
    tokenizer = byte_level()
    names = [
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<mask>",
        "\n\n",
        "<table>",
        "<unused12>",
        "[PAD7]",
    ]
    tokenizer.add_special_tokens([AddedToken(n, normalized=False) for n in names])
    tokenizer.add_tokens([AddedToken(n, normalized=False) for n in ["<think>", "<|eot_id|>", "   "]])
    vocabulary = read_tokenizer(tokenizer).vocabulary
    roles = {c.surface: c.role for c in vocabulary.controls.values()}
    assert roles == {
        "<|im_start|>": Role.OTHER,
        "<|im_end|>": Role.EOS,
        "<|endoftext|>": Role.EOS,
        "<mask>": Role.OTHER,
        "<|eot_id|>": Role.EOS,  # unmarked, but an end all the same
    }
    assert vocabulary.stop_ids == {257, 258, 265}
    texts = {vocabulary.tokens[i] for i in range(256, len(vocabulary))}
    assert texts == {None, b"\n\n", b"<table>", b"<think>", b"   "}


def test_what_transformers_declares_and_what_the_caller_adds() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<start>", "<stop>", "<fill>", "<end>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A", special_tokens=[("<start>", 256)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<start>", eos_token="<stop>", pad_token="<fill>"
    )
    vocabulary = read_tokenizer(fast, stop_ids=[259]).vocabulary
    assert [vocabulary.controls[i].role for i in range(256, 260)] == [
        Role.BOS,
        Role.EOS,
        Role.PAD,
        Role.EOS,
    ]
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.stop_ids) == (256, 257, {257, 259})
    assert read_tokenizer(fast, add_bos=False).vocabulary.bos_id is None
    assert read_tokenizer(fast, roles={Role.EOS: 258}).vocabulary.eos_id == 258


def test_a_declared_bos_is_added_only_if_the_tokenizer_adds_it() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    assert read_tokenizer(fast).vocabulary.bos_id is None
    assert read_tokenizer(fast).vocabulary.controls[256].role is Role.BOS
    assert read_tokenizer(fast, add_bos=True).vocabulary.bos_id == 256


def test_control_surfaces_in_a_text_are_text_but_text_pieces_are_still_found() -> None:
    tokenizer = byte_level(["<|"], [("<", "|")])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<|im_end|>", "\n\n")])
    tokenizer.add_tokens([AddedToken("\t\t", normalized=False)])
    read = read_tokenizer(tokenizer)
    assert read.encode("a<|im_end|>b") == [ord("a"), 256, *b"im_end|>b"]  # merged as any text
    assert read.encode("a\n\nb\t\tc") == [ord("a"), 258, ord("b"), 259, ord("c")]
    assert 257 in tokenizer.encode("a<|im_end|>b").ids  # the original is as it was
    assert not tokenizer.encode_special_tokens


def test_control_surface_that_the_merges_build_is_spelled_out() -> None:
    """ignore_merges emits a whole word that is in the vocabulary, even if it is a control token."""
    tokenizer = sentencepiece_like(["<", "s", ">", "/", "x"], ignore_merges=True)
    assert tokenizer.model.ignore_merges
    read = read_tokenizer(tokenizer)
    assert read.vocabulary.bytes_of(read.encode("</s>")) == b"</s>"
    assert read.vocabulary.bytes_of(read.encode_continuation("<s>")) == b"<s>"
    assert None not in [read.vocabulary.tokens[i] for i in read.encode("<pad>")]


def test_the_original_is_not_changed() -> None:
    tokenizer = sentencepiece_like(["▁", "a"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.enable_truncation(2)
    before = tokenizer.to_str()
    read = read_tokenizer(tokenizer)
    assert len(read.encode("a a a a")) == 8  # and its truncation is not ours
    assert tokenizer.to_str() == before


@pytest.mark.parametrize(
    "prefix",
    [
        lambda t: setattr(
            t, "normalizer", normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        ),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Metaspace(prepend_scheme="always", split=False)),
    ],
)
def test_dummy_prefix_only_at_the_start_of_a_text(prefix: Any) -> None:
    tokenizer = sentencepiece_like(["▁", "a", "▁a", "b"], [("▁", "a")])
    prefix(tokenizer)
    read = read_tokenizer(tokenizer)
    assert read.vocabulary.dummy_prefix
    assert (read.encode("ab"), read.encode_continuation("ab")) == ([262, 263], [261, 263])
    assert read.encode_continuation(" ab") == [262, 263]


def test_dummy_prefix_of_byte_level() -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    read = read_tokenizer(tokenizer)
    assert read.vocabulary.dummy_prefix
    assert (read.encode("a"), read.encode_continuation("a")) == ([0x20, 0x61], [0x61])


def test_added_tokens_keep_ids_beyond_the_models() -> None:
    tokenizer = byte_level(["ab"], [("a", "b")])
    tokenizer.add_tokens(["<x>"])
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.add_tokens(["<y>"])
    read = read_tokenizer(tokenizer)
    assert read.encode("<y>ab<x>") == [259, 256, 257]
    assert read.vocabulary.tokens[256:] == (b"ab", b"<x>", None, b"<y>")


def test_unused_entries_of_the_model_are_no_text() -> None:
    vocabulary = read_tokenizer(byte_level(["[PAD151700]", "<|reserved_special_token_3|>"])).vocabulary
    assert vocabulary.tokens[256:] == (None, None)
    assert not vocabulary.controls


def test_a_text_token_may_end_a_generation_and_keeps_its_bytes() -> None:
    vocabulary = read_tokenizer(byte_level(["ĊĊ"]), stop_ids=[256]).vocabulary
    assert vocabulary.tokens[256] == b"\n\n"
    assert vocabulary.stop_ids == {256}


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _white_space_dropped() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def _end_of_word() -> Tokenizer:
    return Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_word_piece, "WordPiece"),
        (_white_space_dropped, "Whitespace"),
        (_end_of_word, "affixes"),
        (lambda: Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), "WordLevel"),
        (lambda: object(), "builtins.object is no tokenizer"),
        (lambda: "gpt2", "builtins.str is no tokenizer"),
    ],
)
def test_tokenizers_without_exact_bytes_are_refused_by_name(make: Any, reason: str) -> None:
    tokenizer = make()
    with pytest.raises(TokenizerError, match=reason) as caught:
        read_tokenizer(tokenizer)
    assert str(caught.value).startswith(f"{type(tokenizer).__module__}.{type(tokenizer).__name__}")
    assert "\n" not in str(caught.value)


class _PythonSplitter:
    def pre_tokenize(self, text: Any) -> None:
        text.split(lambda i, s: [s])


def test_a_pre_tokenizer_written_in_python_is_refused() -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(_PythonSplitter())
    with pytest.raises(TokenizerError, match="written in Python"):
        read_tokenizer(tokenizer)


def test_one_that_answers_the_protocol_is_taken_as_it_is() -> None:
    read = read_tokenizer(byte_level())
    assert read_tokenizer(read) is read


def test_lone_surrogates_are_refused() -> None:
    read = read_tokenizer(byte_level())
    for encode in (read.encode, read.encode_continuation):
        with pytest.raises(UsageError, match="surrogate"):
            encode("a\udc80")
