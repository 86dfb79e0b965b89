"""How the families of byte-level BPE tokenizers cut a text before merging, by their names in GGUF.

The patterns are facts about published models, as their tokenizer files state them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"
    ),
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Lt}\p{Ll}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-\ud7ff]+",
    r"\p{N}+",
)


@dataclass(frozen=True)
class PreTokenizer:
    """One family's rules.

    Attributes:
        splits: patterns applied one after the other, each match a piece of its own.
        gpt2: whether GPT-2's own pattern cuts what ``splits`` leave.
        digits: whether every digit is a piece of its own.
        ignore_merges: a piece that is a token as a whole is taken without merging.
        add_bos: whether a text starts with the BOS when the file does not say.
        nfc: whether the text is normalised to NFC first.
    """

    splits: tuple[str, ...] = ()
    gpt2: bool = False
    digits: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    @property
    def normalizer(self) -> Callable[[], Any] | None:
        """Makes the normalizer, if there is one."""
        if not self.nfc:
            return None
        from tokenizers import normalizers

        return lambda: normalizers.NFC()

    def build(self) -> Any:
        """The ``tokenizers`` pre-tokenizer."""
        from tokenizers import Regex, pre_tokenizers

        steps: list[Any] = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.splits]
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2))
        return pre_tokenizers.Sequence(steps)


_GPT2_RULES = PreTokenizer(gpt2=True)
_DIGIT_RULES = PreTokenizer(gpt2=True, digits=True)
_LLAMA3_RULES = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULES = PreTokenizer((_QWEN2,), nfc=True)
_GPT4O_RULES = PreTokenizer((_GPT4O,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais"), _GPT2_RULES),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGIT_RULES),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3_RULES),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2_RULES),
    "stablelm2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O_RULES),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
}
"""``tokenizer.ggml.pre`` -> rules."""
