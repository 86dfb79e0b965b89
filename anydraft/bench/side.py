"""One model of a pair, described by its tokenizer and config."""

from __future__ import annotations

from typing import Any

from anydraft.bench.controls import surface
from anydraft.bench.report import SideReport
from anydraft.models.describe import ModelInfo
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Vocabulary

_PROBES = {
    "letters with separate accents": "cafe\u0301 n\u0303",
    "runs of spaces": "a  b     c",
    "tabs and carriage returns": "a\tb\r\nc",
    "a space at the start": " a",
    "a space at the end": "a ",
    "ligatures and circled digits": "\ufb01n \u2460",
    "full-width letters": "\uff21\uff11",
    "capital letters": "ABC",
    "rare characters": "\U00013000\u16a0",
}
"""Kind of text that some tokenizer's normaliser changes -> an instance of it."""


def describe_side(info: ModelInfo, tokenizer: Tokenizer) -> SideReport:
    """``tokenizer`` is the one read from ``info``."""
    vocabulary = tokenizer.vocabulary
    known = sum(1 for i, _ in vocabulary.text_items() if i < info.vocab_size)
    known += sum(1 for i in vocabulary.controls if i < info.vocab_size)
    return SideReport(
        name=info.name,
        architecture=info.architecture,
        tokenizer=tokenizer_kind(info.hf_tokenizer, vocabulary),
        num_parameters=info.num_parameters,
        vocab_size=info.vocab_size,
        text_tokens=sum(1 for _ in vocabulary.text_items()),
        padded_rows=info.vocab_size - known,
        max_context=info.max_context,
        chat_template=bool(getattr(info.hf_tokenizer, "chat_template", None)),
        bos=None if vocabulary.bos_id is None else surface(vocabulary, vocabulary.bos_id),
        changes=tuple(kind for kind, text in _PROBES.items() if not gives_back(tokenizer, text)),
    )


def gives_back(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the tokens of ``text`` have exactly its bytes (a dummy prefix space aside)."""
    vocabulary = tokenizer.vocabulary
    data = vocabulary.bytes_of(tokenizer.encode(text))
    return (data.removeprefix(b" ") if vocabulary.dummy_prefix else data) == text.encode()


def tokenizer_kind(raw: Any, vocabulary: Vocabulary) -> str:
    """Such as "byte-level BPE" or "SentencePiece BPE with byte fallback", from the user's own object."""
    backend = getattr(raw, "backend_tokenizer", raw)
    name = type(getattr(backend, "model", backend)).__name__
    if name not in ("BPE", "Unigram"):
        return name
    notes = ["dummy prefix space"] if vocabulary.dummy_prefix else []
    if "ByteLevel(" in f"{backend.pre_tokenizer} {backend.decoder}":
        kind = f"byte-level {name}"
    elif vocabulary.byte_fallback:
        kind = f"SentencePiece {name} with byte fallback"
    else:
        kind = name
    if (missing := vocabulary.byte_ids.count(None)) and not vocabulary.byte_fallback:
        notes.append(f"{missing} bytes without a token")
    return ", ".join([kind, *notes])
