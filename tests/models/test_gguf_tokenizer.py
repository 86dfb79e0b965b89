from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from anydraft.errors import TokenizerError
from anydraft.models.download import gguf_file, pull
from anydraft.models.gguf_file import read_gguf
from anydraft.models.gguf_tokenizer import build_tokenizer, stop_token_ids
from anydraft.models.packaged import packaged_model
from anydraft.models.pretokenizers import PRE_TOKENIZERS
from tests.models import reference_tokenizers as reference
from tests.vocab import real


@cache
def metadata(name: str) -> dict[str, Any]:
    """Of a packaged model's own GGUF file."""
    model = packaged_model(name)
    pull(model)
    return read_gguf(gguf_file(model)).metadata


@cache
def built(name: str) -> Any:
    return build_tokenizer(metadata(name))


def assert_same_encodings(tokenizer: Any, expected: reference.Encode) -> None:
    for text in reference.texts():
        assert tokenizer(text, add_special_tokens=False).input_ids == expected(text), repr(text[:80])


SMOLLM2, GEMMA, QWEN = "smollm2-135m-instruct", "gemma-3-270m", "qwen2.5-coder-0.5b-instruct"


def test_gemma_encodes_as_sentencepiece_does():
    assert_same_encodings(built(GEMMA), reference.sentencepiece_of(metadata(GEMMA)))


def test_qwen_encodes_as_its_makers_tiktoken_does():
    assert_same_encodings(built(QWEN), reference.qwen())


def test_smollm2_encodes_digits_alone_and_words_as_gpt2():
    assert_same_encodings(built(SMOLLM2), reference.digits_then_gpt2(metadata(SMOLLM2)))


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        (SMOLLM2, "1234 abc", ["1", "2", "3", "4", "Ġabc"]),
        (SMOLLM2, "x2  y", ["x", "2", "Ġ", "Ġy"]),
        (QWEN, "1234 abc", ["1", "2", "3", "4", "Ġabc"]),
        (QWEN, "it's\r\n", ["it", "'s", "čĊ"]),
        (GEMMA, "1234 abc", ["1", "2", "3", "4", "▁abc"]),
        (GEMMA, "a\n\n\n  b", ["a", "\n\n\n", "▁▁", "b"]),
    ],
)
def test_known_pieces(name: str, text: str, pieces: list[str]):
    tokenizer = built(name)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == pieces


def test_known_ids():
    assert built(QWEN)("Hello, world!").input_ids == [9707, 11, 1879, 0]
    assert built(GEMMA)("Hello, world!").input_ids == [2, 9259, 236764, 1902, 236888]


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        (SMOLLM2, lambda text: text.isascii() and text.replace("\n", "").isprintable()),  # lacks other bytes
        (GEMMA, lambda text: "▁" not in text),  # that is how it writes a space
        (QWEN, lambda text: unicodedata.is_normalized("NFC", text)),
    ],
)
def test_texts_come_back(name: str, keeps: Callable[[str], bool]):
    texts = [text for text in reference.texts() if keeps(text)]
    assert len(texts) > 100
    for text in texts:
        assert built(name).decode(built(name)(text, add_special_tokens=False).input_ids) == text


@pytest.mark.parametrize("name", [SMOLLM2, GEMMA])
def test_both_ways_to_load_the_converted_folder_agree(name: str):
    folder = pull(packaged_model(name))
    own, auto = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)
    for text in reference.texts()[:60]:
        expected = built(name)(text).input_ids
        assert own.encode(text).ids == expected
        assert auto(text).input_ids == expected


def test_only_control_tokens_are_special():
    added = built(GEMMA).backend_tokenizer.get_added_tokens_decoder()
    types = metadata(GEMMA)["tokenizer.ggml.token_type"]
    assert {i for i, t in added.items() if t.special} == {i for i, kind in enumerate(types) if kind == 3}
    assert not added[108].special and added[108].content == "\n\n"
    added = built(QWEN).backend_tokenizer.get_added_tokens_decoder()
    assert not added[151657].special and added[151657].content == "<tool_call>"
    assert added[151645].special


def test_unused_ids_are_left_out():
    assert len(metadata(QWEN)["tokenizer.ggml.tokens"]) == 151_936
    assert len(built(QWEN)) == 151_665
    assert built(QWEN)("[PAD151700]").input_ids != [151_700]


@pytest.mark.parametrize(("name", "bos"), [(SMOLLM2, None), (QWEN, None), (GEMMA, 2)])
def test_a_bos_only_where_the_file_asks_for_one(name: str, bos: int | None):
    ids = built(name)("a").input_ids
    assert (ids[0] == bos) == (bos is not None) and len(ids) == (1 if bos is None else 2)


@pytest.mark.parametrize(("name", "stops"), [(SMOLLM2, [0, 2]), (QWEN, [151643, 151645]), (GEMMA, [1, 106])])
def test_stop_ids(name: str, stops: list[int]):
    assert stop_token_ids(metadata(name)) == stops


def test_the_chat_template_is_the_files():
    messages = [{"role": "user", "content": "Hi"}]
    text = built(SMOLLM2).apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert built(GEMMA).chat_template is None


def from_hub_json(model: dict[str, Any], pre: str) -> Any:
    """The tokenizer that a GGUF conversion of a tokenizer.json would give."""
    tokens = [piece for piece, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return build_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
        }
    )


def test_deepseek_encodes_as_its_own_tokenizer_file_does():
    own: Tokenizer = real.original("deepseek")
    tokenizer = from_hub_json(json.loads(own.to_str())["model"], "deepseek-v3")
    for text in reference.texts():
        assert tokenizer(text).input_ids == own.encode(text, add_special_tokens=False).ids, repr(text[:80])


def words(pre: str, text: str) -> list[str]:
    """The pieces that a pre-tokenizer cuts ``text`` into."""
    rules = PRE_TOKENIZERS[pre]
    spans = [span for _, span in rules.build().pre_tokenize_str(text)]
    return [text[a:b] for a, b in spans]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "it's 12345  x\n\ny", ["it", "'s", " 12345", " ", " x", "\n", "\n", "y"]),
        ("smollm", "ab12 3", ["ab", "1", "2", " ", "3"]),
        ("llama-bpe", "I'M 12345 (ok)\n\nx", ["I", "'M", " ", "123", "45", " (", "ok", ")\n\n", "x"]),
        ("qwen2", "a12 b", ["a", "1", "2", " b"]),
        ("qwen35", "कि a", ["कि", " a"]),
        ("qwen2", "कि a", ["क", "ि", " a"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("deepseek-coder", "a1\nb_c", ["a", "1", "\n", "b", "_", "c"]),
        ("deepseek-llm", "ab 123中x", ["ab", " ", "123", "中", "x"]),
    ],
)
def test_pre_tokenizers_cut_where_their_models_were_trained_to(pre: str, text: str, pieces: list[str]):
    assert words(pre, text) == pieces


def minimal(**changes: Any) -> dict[str, Any]:
    base = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab"],
        "merges": ["a b"],
        "token_type": [1, 1, 1],
    }
    return {f"tokenizer.ggml.{k}": v for k, v in (base | changes).items() if v is not None}


def test_whole_pieces_are_taken_without_merging_where_the_family_does():
    given = {"tokens": ["a", "b", "c", "ab", "abc"], "token_type": [1] * 5, "merges": ["a b"]}
    assert build_tokenizer(minimal(pre="gpt-2", **given))("abc").input_ids == [3, 2]
    assert build_tokenizer(minimal(pre="llama-bpe", **given))("abc").input_ids == [4]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre": "sort-of-qwen"}, "'sort-of-qwen'"),
        ({"model": "rwkv"}, "'rwkv'"),
        ({"model": None}, "no tokenizer"),
        ({"tokens": None}, "no tokenizer"),
        ({"token_type": [1]}, "1 token types"),
        ({"merges": ["a c"]}, "merges do not fit"),
        ({"model": "llama"}, "score"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(TokenizerError, match=said) as caught:
        build_tokenizer(minimal(**changes))
    assert "\n" not in str(caught.value)


def test_a_file_without_a_pre_tokenizer_gets_gpt2s_and_a_warning(caplog: pytest.LogCaptureFixture):
    tokenizer = build_tokenizer(minimal(pre=None))
    assert tokenizer("ab").input_ids == [2]
    assert "GPT-2" in caplog.text


LLAMA = {
    "model": "llama",
    "pre": None,
    "merges": None,
    "tokens": ["<unk>", "<s>", "</s>", "<0x41>", "▁", "a", "b", "▁a", "ab", "  "],
    "scores": [0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -2.0, 0.0],
    "token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1, 4],
    "unknown_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("prefix", "text", "ids"),
    [
        (True, "ab", [1, 7, 6]),  # ▁a (better score) before ab
        (False, "ab", [1, 8]),
        (False, " ab", [1, 7, 6]),
        (False, "a  b", [1, 5, 9, 6]),
        (False, "A", [1, 3]),  # a byte
        (False, "aB", [1, 5, 0]),  # no byte token either: unknown
    ],
)
def test_sentencepiece_rules(prefix: bool, text: str, ids: list[int]):
    tokenizer = build_tokenizer(minimal(**LLAMA, add_space_prefix=prefix))
    assert tokenizer(text).input_ids == ids


def test_a_dummy_prefix_is_not_part_of_the_text():
    tokenizer = build_tokenizer(minimal(**LLAMA, add_space_prefix=True))
    assert tokenizer.decode(tokenizer("ab").input_ids, skip_special_tokens=True) == "ab"
