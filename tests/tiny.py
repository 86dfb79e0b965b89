"""Tiny models with real tokenizers of their own: whole pairs in a second, no download."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n",
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox does not.\n\n",
    "Eins zwei drei, größer als kleiner. 数学は楽しい 😀😀 1234567890\n",
] * 4

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@cache
def byte_level(vocab_size: int = 400) -> Any:
    """Byte-level BPE, ChatML, no BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )


@cache
def sentencepiece_like(vocab_size: int = 500) -> Any:
    """BPE over ▁ and byte fallback, Gemma's turns, a BOS before every text."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    seed = Tokenizer(models.BPE())
    seed.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(byte_tokens) - len(specials),
        special_tokens=["<unk>"],
        show_progress=False,
    )
    # Words only: pieces do not span several words in SentencePiece vocabularies.
    seed.train_from_iterator((w for text in CORPUS for w in text.replace(" ", "| ").split("|")), trainer)
    import json

    trained = json.loads(seed.to_str())["model"]
    pieces = [p for p, _ in sorted(trained["vocab"].items(), key=lambda x: x[1]) if p != "<unk>"]
    vocab = {piece: i for i, piece in enumerate([*specials, *byte_tokens, *pieces])}
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in trained["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(specials)
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", vocab["<bos>"])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=TURNS,
    )


@cache
def apart() -> Any:
    """Words that no other vocabulary here has, and an end token that others have too."""
    vocab = {"<unk>": 0, "<eos>": 1, "▁zebra": 2, "▁quartz": 3, "▁yacht": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Replace("▁", " ")
    tokenizer.add_special_tokens(["<unk>", "<eos>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>"
    )


def _small(tokenizer: Any, padded_rows: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer) + padded_rows,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        # Large weights make peaked rows: a random model then has opinions, and ties are out of reach.
        "initializer_range": 0.3,
    }


@cache
def llama(seed: int = 0, padded_rows: int = 0) -> tuple[Any, Any]:
    """A Llama over the byte-level vocabulary; (model, tokenizer)."""
    torch.manual_seed(seed)
    tokenizer = byte_level()
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_small(tokenizer, padded_rows))
    ).eval(), tokenizer


@cache
def gemma3(seed: int = 1, padded_rows: int = 0) -> tuple[Any, Any]:
    """A Gemma-3 with sliding windows of 16 over the SentencePiece-like vocabulary; (model, tokenizer)."""
    torch.manual_seed(seed)
    tokenizer = sentencepiece_like()
    config = transformers.Gemma3TextConfig(
        **_small(tokenizer, padded_rows),
        head_dim=12,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=12,
    )
    return transformers.Gemma3ForCausalLM(config).eval(), tokenizer
