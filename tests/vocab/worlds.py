"""Vocabularies of a few tokens, written by hand."""

from __future__ import annotations

from anydraft.vocab.vocabulary import Control, Role, Vocabulary


def vocabulary(
    *tokens: bytes | tuple[Role, str] | None,
    stop_ids: set[int] = frozenset(),  # type: ignore[assignment]
    bos_id: int | None = None,
    eos_id: int | None = None,
    byte_fallback: set[int] = frozenset(),  # type: ignore[assignment]
) -> Vocabulary:
    """Bytes are text, (role, surface) is a control token, None is nothing."""
    controls = {i: Control(i, *t) for i, t in enumerate(tokens) if isinstance(t, tuple)}
    ends = {i for i, c in controls.items() if c.role is Role.EOS}
    return Vocabulary(
        tokens=tuple(t if isinstance(t, bytes) else None for t in tokens),
        controls=controls,
        stop_ids=frozenset(ends | stop_ids),
        bos_id=bos_id,
        eos_id=eos_id,
        byte_fallback=frozenset(byte_fallback),
    )


class LongestMatch:
    """Answers the Tokenizer protocol for such a vocabulary: always the longest token, lowest id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        return self.encode_continuation(text)

    def encode_continuation(self, text: str) -> list[int]:
        data, ids = text.encode(), []
        while data:
            fitting = [i for i, b in self.vocabulary.text_items() if data.startswith(b)]
            if not fitting:
                data = data[1:]
                continue
            best = max(fitting, key=lambda i: (len(self.vocabulary.tokens[i] or b""), -i))
            ids.append(best)
            data = data[len(self.vocabulary.tokens[best] or b"") :]
        return ids
