"""From what the draft wrote to a guess of the target's next tokens (SLEM, Alg. 2)."""

from __future__ import annotations

from collections.abc import Sequence

from anydraft.vocab.bridge import Bridge
from anydraft.vocab.text import incomplete_tail, split_utf8
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Role, Vocabulary

_TAIL = 8
"""Known target tokens that are encoded again in front of the drafted text."""


class Translator:
    """Draft ids -> target ids with the same bytes, as the target would most likely split them.

    The target's own recent tokens are encoded again together with the drafted text, so that the target's
    pre-tokenizer sees what stands before; a guess starts where the known text ends. Whatever comes out,
    the guess is only a guess: a wrong one costs acceptance, never correctness.
    """

    def __init__(self, target_tokenizer: Tokenizer, draft_vocabulary: Vocabulary, bridge: Bridge) -> None:
        self._tokenizer = target_tokenizer
        self._tokens = target_tokenizer.vocabulary.tokens
        self._draft = draft_vocabulary
        self._bridge = bridge

    def translate(self, target_tail_ids: Sequence[int], draft_ids: Sequence[int]) -> list[int]:
        """The proposed target ids.

        Args:
            target_tail_ids: the target's ids so far, or at least the last eight.
            draft_ids: what the draft drew as their continuation.

        Returns:
            Ids of text tokens whose bytes are the drafted ones, from the first on; a character that the
            draft has not finished is left out, and so is all that follows a byte that is no UTF-8. If the
            draft ended there, the target's end token comes last. No other control token, no padded id.
        """
        data, end = self._drafted(draft_ids)
        known = self._known(target_tail_ids)
        pending = incomplete_tail(known)
        whole = len(data)
        data = _complete(known[len(known) - pending :] + data)[pending:]
        proposal = self._aligned(known, data, pending) if data else []
        done = sum(len(self._tokens[i] or b"") for i in proposal)
        return [*proposal, end] if end >= 0 and done == whole else proposal

    def _drafted(self, draft_ids: Sequence[int]) -> tuple[bytes, int]:
        """The bytes up to the first control token, and the target's end token for it (-1: none)."""
        data = bytearray()
        for i in draft_ids:
            token = self._draft.tokens[i] if 0 <= i < len(self._draft.tokens) else None
            if token is None:
                control = self._draft.controls.get(i)
                ends = control is not None and control.role is Role.EOS
                return bytes(data), int(self._bridge.draft_to_target[i]) if ends else -1
            data += token
        return bytes(data), -1

    def _known(self, target_ids: Sequence[int]) -> bytes:
        """Bytes of the last text tokens, from the start of a character on, valid but for an open end."""
        pieces: list[bytes] = []
        for i in reversed(target_ids[-_TAIL:]):
            token = self._tokens[i] if 0 <= i < len(self._tokens) else None
            if token is None:
                break
            pieces.append(token)
        data = b"".join(reversed(pieces))
        open_end = incomplete_tail(data)
        parts = split_utf8(data[: len(data) - open_end])
        return (parts[-1][0].encode() if parts and not parts[-1][1] else b"") + data[len(data) - open_end :]

    def _aligned(self, known: bytes, data: bytes, pending: int) -> list[int]:
        """Ids of ``data``, from an encoding of ``known + data`` if it has a boundary between them."""
        for start in dict.fromkeys((0, len(known) - pending)):
            before = known[start:]
            ids = self._tokenizer.encode_continuation((before + data).decode())
            skip = self._boundary(ids, len(before))
            if skip is not None and (ids := self._exact(ids[skip:], data)):
                return ids
        # The target will finish its open character byte by byte; the rest is text of its own.
        first = next((n for n in range(1, 4) if data[n : n + 1] and data[n] & 0xC0 != 0x80), len(data))
        byte_ids = self._tokenizer.vocabulary.byte_ids
        ids = [i for i in (byte_ids[b] for b in data[:first]) if i is not None]
        if len(ids) == first < len(data):
            ids += self._tokenizer.encode_continuation(data[first:].decode())
        return self._exact(ids, data)

    def _boundary(self, ids: list[int], position: int) -> int | None:
        """How many of ``ids`` make up the first ``position`` bytes; None if a token spans that place."""
        for count, i in enumerate(ids):
            if position <= 0:
                return count if position == 0 else None
            position -= len(self._tokens[i] or b"")
        return None

    def _exact(self, ids: list[int], data: bytes) -> list[int]:
        """The leading ids whose bytes are those of ``data``."""
        position = 0
        for count, i in enumerate(ids):
            token = self._tokens[i]
            if not token or not data.startswith(token, position):
                return ids[:count]
            position += len(token)
        return ids


def _complete(data: bytes) -> bytes:
    """The leading part that is valid UTF-8."""
    return split_utf8(data)[0][0].encode() if data else data
