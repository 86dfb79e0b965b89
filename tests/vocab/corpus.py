"""Texts that tokenizers treat differently, and random mixtures of them."""

from __future__ import annotations

import random
import string

TEXTS = {
    "prose": "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?\n\n"
    "  Yes.\r\n\tNo\t\t end   \n \n",
    "code": "def add(a, b):\n    return a + b\n\n\nclass Foo(Bar):\n    x: int = 0x1F\n\n    def f(self):\n"
    "        if x >= 10 and y != 20:\n            raise ValueError(f'bad {x!r}')\n",
    "json": '{"key": [1, 2.5e-10, null], "ключ": "значение"}\n',
    "russian": "Привет, мир! Это длинное предложение — с тире и «кавычками».\n",
    "japanese": "日本語のテキストです。漢字とかなが混ざっています。",
    "chinese": "这是一段中文文本，没有空格，标点符号很多；真的吗？是的！",
    "korean": "안녕하세요 세계! 한국어 문장입니다.",
    "arabic": "مرحبا بالعالم، هذا نص عربي.",
    "hindi": "नमस्ते दुनिया, यह हिन्दी है।",
    "thai": "สวัสดีชาวโลกนี่คือภาษาไทย",
    "emoji": "🎉👩‍👩‍👧‍👦🇩🇪🏳️‍🌈 emoji 😀😀😀😀 ",
    "latin": "é café naïve “quotes” – ½ ² \u00a0\u2003\u3000x",
    "control": "\x00\x01\x07\x1b[31m\x7f\u200b\ufeff",
    "whitespace": "\n" * 10 + " " * 17 + "\t" * 9 + " \r\n \n",
    "markers": "<|im_end|><table><s></s><bos><unused3>[PAD151700] <end_of_turn>\n<|endoftext|>[INST]",
    "fullwidth": "ＦＵＬＬ　ｗｉｄｔｈ　text",
}

REPETITIVE = {
    "ones": "1" * 600,
    "letters": "a" * 600,
    "pairs": "ab" * 300,
    "word": "word " * 100,
    "emoji": "🎉😀" * 60,
    "newlines": "\n" * 10,
    "many newlines": "\n" * 600,
    "spaces": " " * 600,
    "chinese": "中" * 300,
    "dashes": "-" * 79 + "\n" + "=" * 600,
}


def random_text(rng: random.Random, length: int) -> str:
    """At least ``length`` characters of mixed scripts, with odd characters now and then."""
    parts: list[str] = []
    sources = [*TEXTS.values(), string.ascii_letters * 2, "0123456789" * 5, " \n\t" * 20]
    while sum(map(len, parts)) < length:
        source = rng.choice(sources)
        start = rng.randrange(len(source))
        parts.append(source[start : start + rng.randrange(1, 60)])
        if rng.random() < 0.1:
            parts.append(chr(rng.choice([rng.randrange(1, 0x3000), rng.randrange(0x1F300, 0x1F700)])))
    return "".join(parts)
