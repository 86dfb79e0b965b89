"""Tokenizers from GGUF metadata, with the pre-tokenizer that the file names.

A GGUF file holds a vocabulary, merges or scores, a type for each token and the *name* of the
pre-tokenizer (``tokenizer.ggml.pre``). A wrong pre-tokenizer still encodes every text, only differently
from what the model was trained on; so an unknown name is refused, never replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from anydraft.errors import TokenizerError
from anydraft.models.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from anydraft.vocab.controls import END_OF_TEXT, END_OF_TURN

logger = logging.getLogger(__name__)


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_CONTROL = (TokenType.CONTROL, TokenType.UNKNOWN)
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def build_tokenizer(metadata: Mapping[str, Any]) -> Any:
    """A ``PreTrainedTokenizerFast`` of the tokenizer that GGUF ``metadata`` describes.

    Only control tokens (and the unknown token) are special; user-defined ones are text that is never
    split; unused ids are left out, so that nothing encodes or decodes to them.

    Raises:
        TokenizerError: no tokenizer in the file, or one that cannot be rebuilt exactly.
    """
    from transformers import PreTrainedTokenizerFast

    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if kind is None or not tokens:
        raise TokenizerError(
            "the GGUF file holds no tokenizer (tokenizer.ggml.tokens); use a file that was converted with it"
        )
    types = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(
            f"the GGUF file has {len(tokens)} tokens but {len(types)} token types; it is damaged"
        )
    if kind == "gpt2":
        backend, add_bos = _byte_level(metadata, tokens, types)
    elif kind == "llama":
        backend, add_bos = _sentencepiece(metadata, tokens, types)
    else:
        raise TokenizerError(
            f"a GGUF tokenizer of kind {kind!r} cannot be rebuilt exactly (known: gpt2, llama); use the "
            "original model folder with its tokenizer.json"
        )
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
    roles = _role_tokens(metadata, tokens)
    if add_bos and "bos_token" in roles:
        _put_bos_first(backend, roles["bos_token"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **roles)
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        tokenizer.chat_template = template
    return tokenizer


def stop_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Ids that end a generation, ascending: the declared end tokens and control tokens known to be ones."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type") or []
    found = {metadata.get(f"tokenizer.ggml.{key}") for key in _STOP_KEYS}
    ends = END_OF_TURN | END_OF_TEXT
    found |= {i for i, kind in enumerate(types) if kind in _CONTROL and tokens[i] in ends}
    return sorted(i for i in found if isinstance(i, int) and 0 <= i < len(tokens))


def _role_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    """Transformers' names of the tokens that the file gives a role."""
    found = {}
    for role, key in _ROLES.items():
        index = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(index, int) and 0 <= index < len(tokens):
            found[role] = tokens[index]
    return found


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> tuple[Any, bool]:
    """Byte-level BPE; (tokenizer, whether its family adds a BOS unless the file says)."""
    from tokenizers import Tokenizer, decoders, models

    pre = _pre_tokenizer(metadata)
    vocab = {t: i for i, t in enumerate(tokens) if types[i] != TokenType.UNUSED}
    merges = [_split_merge(m) for m in metadata.get("tokenizer.ggml.merges") or []]
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges)
    except Exception as error:  # the bindings raise a plain Exception
        raise TokenizerError(
            f"the GGUF file's merges do not fit its vocabulary ({error}); it is damaged"
        ) from None
    tokenizer = Tokenizer(model)
    if pre.normalizer is not None:
        tokenizer.normalizer = pre.normalizer()
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, tokens, types, normalized=False)
    return tokenizer, pre.add_bos


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre")
    if name in (None, "", "default"):
        logger.warning("the GGUF file names no pre-tokenizer (tokenizer.ggml.pre); GPT-2's is assumed")
        name = "gpt-2"
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"the GGUF file names the pre-tokenizer {name!r}, whose rules are not known here; use the original "
            f"model folder with its tokenizer.json (known: {', '.join(sorted(PRE_TOKENIZERS))})"
        )
    return PRE_TOKENIZERS[name]


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> tuple[Any, bool]:
    """SentencePiece BPE: of all neighbours whose union is a piece, the highest score is merged first.

    As a merge list, that is every way to cut a piece in two, by the score of the piece. User-defined
    pieces are found before any merging, longest first, and are never merged (SentencePiece's
    ``PrefixMatcher``); GGUF spells their spaces as spaces.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    scores = metadata.get("tokenizer.ggml.scores")
    if not scores or len(scores) != len(tokens):
        raise TokenizerError(
            "the GGUF file has no score for each token; use a file that was converted with them"
        )
    vocab = {t: i for i, t in enumerate(tokens) if types[i] != TokenType.UNUSED}
    normal = {t: i for t, i in vocab.items() if types[i] == TokenType.NORMAL}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    model = models.BPE(
        vocab=vocab,
        merges=_merges_by_score(normal, scores),
        unk_token=tokens[unknown] if isinstance(unknown, int) else None,
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in types,
    )
    tokenizer = Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme="first", split=False
        )
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(steps)
    _add_tokens(tokenizer, tokens, types, normalized=True)
    return tokenizer, True


def _merges_by_score(pieces: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every cut of a piece into two pieces, best score first; equal scores by id."""
    merges = []
    for piece in sorted(pieces, key=lambda p: (-scores[pieces[p]], pieces[p])):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                merges.append((left, right))
    return merges


def _add_tokens(tokenizer: Any, tokens: list[str], types: list[int], *, normalized: bool) -> None:
    """Declare the control tokens as special and the user-defined ones as text that stays whole.

    ``normalized``: user-defined tokens are looked for in the normalised text.
    """
    from tokenizers import AddedToken

    tokenizer.add_tokens(
        [
            AddedToken(
                t, normalized=normalized and types[i] == TokenType.USER_DEFINED, special=types[i] in _CONTROL
            )
            for i, t in enumerate(tokens)
            if types[i] in (*_CONTROL, TokenType.USER_DEFINED)
        ]
    )


def _put_bos_first(tokenizer: Any, bos: str) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos}:0 $A:0",
        pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
