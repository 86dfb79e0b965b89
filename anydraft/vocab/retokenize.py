"""The draft's own tokenization of a request's text, kept up to date token by token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from anydraft.vocab.bridge import Bridge
from anydraft.vocab.text import encode_bytes
from anydraft.vocab.tokenizer import Tokenizer
from anydraft.vocab.vocabulary import Role

_ADVANCE = 160
"""Bytes in the window from which on a cut is looked for."""
_RIGHT = 64
"""Bytes that must stand right of a cut, so that what comes later cannot reach across it."""
_ANYWHERE = 768
"""Bytes in the window from which on a cut need not be at the edge of a word."""
_LIMIT = 1536
"""Bytes in the window from which on it is cut in any case."""
_TRIES = 3
"""Cuts tried at a time."""

_WORD_START = re.compile(rb"(?<=[^\s])(?= [^\s\d_])|(?<=\n)(?=[^\s\d_])")
"""Where every known pre-tokenizer splits: before the space that begins a word, after a line break."""
_WORD_END = re.compile(rb"(?<=[\w\x80-\xff])(?=[!-/:-@\[-^{-~])")
"""Where most split: between a letter and a punctuation mark."""


class DraftContext:
    """The draft's ids for the text of one request so far.

    Equal to tokenizing the whole text again after every step, at a cost a step that does not depend on
    the text's length: only a window since the last *cut* is tokenized again. A cut is a place where the
    tokens right of it are the same whether or not the text left of it is there, checked with at least
    64 bytes on its right. Where a text has no such place within 1,536 bytes it is cut all the same; the
    draft's ids may differ from the whole tokenization there, which can cost acceptance and nothing else.

    Attributes:
        ids: the draft's ids, whole; changed in place by :meth:`append`, to be read only.
    """

    def __init__(self, tokenizer: Tokenizer, bridge: Bridge, prefix_ids: Sequence[int] = ()) -> None:
        """``prefix_ids`` stay in front as they are: the draft's BOS, or its own rendering of the chat."""
        self._tokenizer = tokenizer
        self._bridge = bridge
        self.ids = list(prefix_ids)
        controls = tokenizer.vocabulary.controls
        bos_only = all(i in controls and controls[i].role is Role.BOS for i in prefix_ids)
        self._at_start = bos_only  # whether no text came before the window
        self._strip_space = bos_only and bridge.target.dummy_prefix
        self._window = b""
        self._settled = len(self.ids)  # ids before the window
        self._next_try = _ADVANCE

    def append(self, target_ids: Sequence[int]) -> int:
        """Append the text of ``target_ids``; how many leading draft ids are the same as before.

        Control tokens become the draft's by the bridge; one without a counterpart is given as the text
        that the target writes it as, but BOS, padding and unknown tokens as nothing. Ids beyond the
        target's vocabulary are nothing, too.
        """
        stable = len(self.ids)
        text = bytearray()
        for piece in self._pieces(target_ids):
            if isinstance(piece, bytes):
                text += piece
                continue
            stable = min(stable, self._append_text(bytes(text)))
            text.clear()
            self._append_control(piece)
        return min(stable, self._append_text(bytes(text)))

    def _pieces(self, target_ids: Sequence[int]) -> Iterator[bytes | int]:
        """The bytes, or the draft's control id, of each target id."""
        target = self._bridge.target
        for i in target_ids:
            data = target.tokens[i] if 0 <= i < len(target.tokens) else None
            if data is not None:
                if self._strip_space and data:
                    data = data.removeprefix(b" ")
                    self._strip_space = False
                yield data
            elif (control := target.controls.get(i)) is not None:
                mapped = int(self._bridge.target_to_draft[i])
                if control.role in (Role.BOS, Role.PAD, Role.UNK):
                    continue
                yield mapped if mapped >= 0 else control.surface.encode()

    def _append_control(self, draft_id: int) -> None:
        self.ids.append(draft_id)
        self._window = b""
        self._settled = len(self.ids)
        self._at_start = self._strip_space = False
        self._next_try = _ADVANCE

    def _append_text(self, data: bytes) -> int:
        """Append bytes; how many leading draft ids are the same as before."""
        if not data:
            return len(self.ids)
        start = self._settled
        old = self.ids[start:]
        self._window += data
        self.ids[start:] = self._encode(self._window, not self._at_start)
        if len(self._window) >= self._next_try:
            self._cut()
        return start + _num_common(old, self.ids, start)

    def _encode(self, data: bytes, continuation: bool = True) -> list[int]:
        return encode_bytes(self._tokenizer, data, continuation=continuation)

    def _cut(self) -> None:
        """Shorten the window if a place for it is found, or if it is too long."""
        window, num_ids = self._window, len(self.ids)
        for position in self._places():
            right = self._encode(window[position:])
            settled = num_ids - len(right)
            if settled >= self._settled and self.ids[settled:] == right:
                self._settle(position, settled)
                return
        if len(window) < _LIMIT:
            self._next_try = len(window) + _RIGHT
            return
        position = _character_start(window, len(window) - _LIMIT // 2)
        left = self._encode(window[:position], not self._at_start)
        self.ids[self._settled :] = left + self._encode(window[position:])
        self._settle(position, self._settled + len(left))

    def _settle(self, position: int, settled: int) -> None:
        self._window = self._window[position:]
        self._settled = settled
        self._at_start = False
        self._next_try = _ADVANCE

    def _places(self) -> Iterator[int]:
        """Places to try, the most promising first, as positions in the window."""
        window = self._window
        start, end = max(1, len(window) - _ADVANCE), len(window) - _RIGHT
        for edge in (_WORD_START, _WORD_END):
            found = [m.start() for m in edge.finditer(window, start, end)]
            yield from reversed(found[-_TRIES:])
        if len(window) >= _ANYWHERE:
            yield from self._token_starts(len(window) - _ADVANCE)

    def _token_starts(self, end: int) -> Iterator[int]:
        """Where the last tokens that start at or before ``end`` seem to start, from right to left."""
        tokens = self._tokenizer.vocabulary.tokens
        position, tries = len(self._window), 0
        for i in reversed(self.ids):
            position -= len(tokens[i] or b"")
            if position <= 0 or tries == _TRIES:
                return
            if position <= end:
                tries += 1
                yield position


def _num_common(old: Sequence[int], ids: Sequence[int], start: int) -> int:
    """Length of the common prefix of ``old`` and ``ids[start:]``."""
    return next(
        (k for k, i in enumerate(old) if start + k >= len(ids) or ids[start + k] != i),
        len(old),
    )


def _character_start(data: bytes, position: int) -> int:
    """The nearest position at or before ``position`` (at most 3 less) that is not inside a character."""
    return next((p for p in range(position, position - 4, -1) if data[p] & 0xC0 != 0x80), position)
