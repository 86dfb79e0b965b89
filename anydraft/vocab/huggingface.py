"""Reader for Hugging Face fast tokenizers (``tokenizers.Tokenizer`` and what wraps it)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from anydraft.errors import TokenizerError
from anydraft.vocab.controls import Declared, build_vocabulary, is_control, is_filler
from anydraft.vocab.text import checked
from anydraft.vocab.vocabulary import Role, Vocabulary

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_ROLE_ATTRIBUTES = {
    Role.BOS: "bos_token_id",
    Role.EOS: "eos_token_id",
    Role.PAD: "pad_token_id",
    Role.UNK: "unk_token_id",
}


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the other bytes in
    ascending order for the characters from U+0100 on (Radford et al., GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(rest)}


class HuggingFaceTokenizer:
    """Answers the Tokenizer protocol with a copy that shares the (large, read-only) model of the original.

    The copy differs from the original in that control tokens written in a text are text.
    """

    def __init__(self, backend: Any, declared: Declared) -> None:
        """``backend`` is a ``tokenizers.Tokenizer``; it is not changed."""
        parts = _components(backend)
        added = dict(sorted(backend.get_added_tokens_decoder().items()))
        control = {i for i, t in added.items() if is_control(i, t.content, t.special, declared)}
        filler = {i for i, t in added.items() if is_filler(t.content)}
        rest = _without_dummy_prefix(parts)
        self._vocabulary = _vocabulary(backend, parts, added, control, filler, declared, rest != parts)
        self._surface = {i: added[i].content for i in control | filler}
        self._unk = next((i for i, c in self._vocabulary.controls.items() if c.role is Role.UNK), None)
        self._start = self._copy(backend, parts, added)
        self._rest = self._start if rest == parts else self._copy(backend, rest, added)

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def encode(self, text: str) -> list[int]:
        return self._encode(self._start, text)

    def encode_continuation(self, text: str) -> list[int]:
        return self._encode(self._rest, text)

    def _encode(self, backend: Any, text: str) -> list[int]:
        ids: list[int] = backend.encode(checked(text), add_special_tokens=False).ids
        tokens = self._vocabulary.tokens
        if all(tokens[i] is not None or i == self._unk for i in ids):
            return ids
        # The model itself merged text to the surface of a control token: spell it in two parts.
        return [part for i in ids for part in self._spell(i)]

    def _spell(self, token_id: int) -> list[int]:
        surface = self._surface.get(token_id, "")
        if token_id == self._unk or self._vocabulary.tokens[token_id] is not None or len(surface) < 2:
            return [token_id]
        return self._encode(self._rest, surface[:1]) + self._encode(self._rest, surface[1:])

    def _copy(self, backend: Any, parts: dict[str, Any], added: dict[int, Any]) -> Any:
        from tokenizers import AddedToken, Tokenizer

        shell = _shell(parts)
        copy = Tokenizer(backend.model)
        if shell.normalizer is not None:
            copy.normalizer = shell.normalizer
        if shell.pre_tokenizer is not None:
            copy.pre_tokenizer = shell.pre_tokenizer
        tokens = [
            AddedToken(
                t.content,
                single_word=t.single_word,
                lstrip=t.lstrip,
                rstrip=t.rstrip,
                normalized=t.normalized,
                special=i in self._surface,
            )
            for i, t in added.items()
        ]
        copy.add_tokens(tokens)
        copy.encode_special_tokens = True
        given = copy.get_added_tokens_decoder()
        if any(i not in given or given[i].content != t.content for i, t in added.items()):
            raise TokenizerError(
                "the tokenizer's added tokens have ids that leave gaps; save it with save_pretrained, "
                "repair its added_tokens and load it again"
            )
        return copy


def read_huggingface(tokenizer: Any, declared: Declared | None = None, add_bos: bool | None = None) -> Any:
    """A :class:`HuggingFaceTokenizer` of a ``tokenizers.Tokenizer`` or a fast tokenizer of Transformers.

    ``declared`` adds to what the tokenizer says itself. ``add_bos`` says whether a text starts with the
    BOS; None: as the tokenizer's own post-processor does.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    given = declared or Declared()
    ids = {
        role: value
        for role, name in _ROLE_ATTRIBUTES.items()
        if isinstance(value := getattr(tokenizer, name, None), int)
    } | dict(given.ids)
    bos_id = given.bos_id
    if bos_id is None and add_bos is not False:
        first = backend.encode("", add_special_tokens=True).ids[:1]
        special = {i for i, t in backend.get_added_tokens_decoder().items() if t.special}
        if first and first[0] in special and first[0] != ids.get(Role.EOS):
            bos_id = first[0]
        elif add_bos:
            bos_id = ids.get(Role.BOS)
    return HuggingFaceTokenizer(backend, Declared(ids, given.stop_ids, bos_id))


def _shell(parts: dict[str, Any]) -> Any:
    """A tokenizer with an empty model and these normalizer and pre-tokenizer."""
    from tokenizers import Tokenizer, models

    empty = json.loads(Tokenizer(models.BPE()).to_str())
    return Tokenizer.from_str(json.dumps(empty | parts))


def _components(backend: Any) -> dict[str, Any]:
    """JSON of normalizer, pre_tokenizer and decoder (None where there is none)."""
    from tokenizers import Tokenizer, models

    shell = Tokenizer(models.BPE())
    try:
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            if (value := getattr(backend, name)) is not None:
                setattr(shell, name, value)
        parts = json.loads(shell.to_str())
    except Exception as error:  # the bindings raise plain Exception for components written in Python
        raise TokenizerError(
            f"the tokenizer has a part written in Python, whose rules cannot be read ({error}); "
            "use the model's own tokenizer.json"
        ) from None
    return {name: parts[name] for name in ("normalizer", "pre_tokenizer", "decoder")}


def _walk(part: Any) -> Iterator[dict[str, Any]]:
    """Every component in a tree of Sequences."""
    if isinstance(part, dict):
        yield part
        for key in ("normalizers", "pretokenizers", "decoders"):
            for child in part.get(key, []):
                yield from _walk(child)


def _space_marker(parts: dict[str, Any]) -> str | None:
    """The character that stands for a space in the pieces (▁), or None if a space is a space."""
    for part in (*_walk(parts["pre_tokenizer"]), *_walk(parts["decoder"])):
        if part["type"] == "Metaspace":
            return str(part["replacement"])
    for part in _walk(parts["normalizer"]):
        if part["type"] == "Replace" and part["pattern"] == {"String": " "} and len(part["content"]) == 1:
            return str(part["content"])
    for part in _walk(parts["decoder"]):
        if part["type"] == "Replace" and part["content"] == " ":
            return str(part["pattern"].get("String", "▁"))
    return None


def _piece_reader(backend: Any, parts: dict[str, Any]) -> tuple[Callable[[str], bytes | None], bool]:
    """(piece -> bytes, whether ``<0xNN>`` pieces are bytes), or a refusal that says why."""
    model = backend.model
    kind = type(model).__name__
    if kind not in ("BPE", "Unigram"):
        raise TokenizerError(
            f"a {kind} tokenizer does not keep the white space of a text, so its tokens have no exact bytes; "
            "choose a model with a BPE or Unigram tokenizer"
        )
    if getattr(model, "continuing_subword_prefix", None) or getattr(model, "end_of_word_suffix", None):
        raise TokenizerError(
            "a BPE tokenizer with word-boundary affixes (such as </w>) does not keep the white space of a "
            "text, so its tokens have no exact bytes; choose another model"
        )
    everything = [part for tree in parts.values() for part in _walk(tree)]
    if any(part["type"] == "ByteLevel" for part in everything):
        alphabet = byte_alphabet()

        def by_alphabet(piece: str) -> bytes | None:
            try:
                return bytes([alphabet[c] for c in piece])
            except KeyError:  # no text reaches it
                return None

        return by_alphabet, False
    marker = _space_marker(parts)
    if marker is None:
        for part in _walk(parts["pre_tokenizer"]):
            if (
                part["type"] in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit")
                or part.get("behavior") == "Removed"
            ):
                raise TokenizerError(
                    f"the tokenizer's pre-tokenizer ({part['type']}) drops white space, so its tokens have "
                    "no exact bytes; choose another model"
                )
    byte_pieces = getattr(model, "byte_fallback", False) or any(
        part["type"] == "ByteFallback" for part in everything
    )
    if marker is None:
        return str.encode, byte_pieces
    return lambda piece: piece.replace(marker, " ").encode(), byte_pieces


def _vocabulary(
    backend: Any,
    parts: dict[str, Any],
    added: dict[int, Any],
    control: set[int],
    filler: set[int],
    declared: Declared,
    dummy_prefix: bool,
) -> Vocabulary:
    pieces: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    size = 1 + max(max(pieces.values(), default=-1), max(added, default=-1))
    tokens: list[bytes | None] = [None] * size
    read, byte_pieces = _piece_reader(backend, parts)
    byte_fallback = []
    for piece, i in pieces.items():
        if byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            tokens[i] = bytes([int(match[1], 16)])
            byte_fallback.append(i)
        elif piece[:1] not in "[<" or not is_filler(piece):
            tokens[i] = read(piece)
    marker = _space_marker(parts)
    for i, token in added.items():
        if i in filler:
            tokens[i] = None
        elif i not in control:
            text = token.content
            if marker and text in pieces:
                text = text.replace(marker, " ")
            tokens[i] = text.encode()
    surfaces = {i: added[i].content for i in control - filler}
    return build_vocabulary(tokens, surfaces, declared, byte_fallback, dummy_prefix=dummy_prefix)


def _without_dummy_prefix(parts: dict[str, Any]) -> dict[str, Any]:
    """The same components, but none puts a space before the text."""
    parts = json.loads(json.dumps(parts))
    normalizer = parts["normalizer"]
    if normalizer and normalizer["type"] == "Prepend":
        parts["normalizer"] = None
    for part in _walk(parts["normalizer"]):
        if part["type"] == "Sequence":
            part["normalizers"] = [p for p in part["normalizers"] if p["type"] != "Prepend"]
    for part in _walk(parts["pre_tokenizer"]):
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
        if "add_prefix_space" in part:
            part["add_prefix_space"] = False
    return parts
