"""Which tokens of a tokenizer are control tokens, and what each is for.

Tokenizers disagree about their own flags: conversions mark text as special, or leave an end-of-turn
marker unmarked. What a token is, is decided here for all readers, from its surface and from what the
tokenizer declares (its bos, eos, pad and unk tokens).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anydraft.vocab.vocabulary import Control, Role, Vocabulary

END_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<turn|>",
        "<|end|>",
        "<|eot|>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|return|>",
        "<end_of_utterance>",
    }
)
"""End a turn of a conversation."""

END_OF_TEXT = frozenset(
    {
        "</s>",
        "<eos>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<｜end▁of▁sentence｜>",
        "<|eos|>",
        "[EOS]",
        "<EOS>",
    }
)
"""End a whole text (and, where a tokenizer has no other, a turn)."""

_START_OF_TURN = frozenset({"<|im_start|>", "<start_of_turn>", "<|turn>", "<|start_header_id|>"})
_BOS = frozenset(
    {
        "<s>",
        "<bos>",
        "<|begin_of_text|>",
        "<|startoftext|>",
        "<｜begin▁of▁sentence｜>",
        "[BOS]",
        "<BOS_TOKEN>",
    }
)
_PAD = frozenset({"<pad>", "[PAD]", "<|pad|>", "<PAD>", "<｜▁pad▁｜>", "<|finetune_right_pad_id|>"})
_UNK = frozenset({"<unk>", "[UNK]", "<UNK>", "<|unk|>"})

_FILLER = re.compile(
    r"""
    \[PAD\d+\] | <pad\d+> | <unused_?\d+> | \[unused_?\d+\] | <\|?reserved_?(special_)?(token_?)?\d+\|?>
    | <\|extra_\d+\|> | <extra_id_\d+> | <\|dummy_\d+\|> | <unk_?\d+> | <[|｜]place.?holder\w*[|｜]>
    | <SPECIAL_\d+> | \[control_\d+\] | \[IGNORE_?\d*\] | <\|vq_\d+\|> | <\|unused_?\d+\|>
    """,
    re.VERBOSE,
)

_HTML = re.compile(
    r"""</?(?:a|b|bbox|blockquote|body|br|caption|code|dd|div|dl|dt|em|footer|h[1-6]|head|header|hr|html|i
    |iframe|img|li|ol|p|pre|section|span|strong|sub|sup|table|tbody|td|tfoot|th|thead|title|tr|u|ul)>""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Declared:
    """What a tokenizer, or whoever loads it, says about its control tokens; -1 and None mean nothing.

    Attributes:
        ids: role -> id of the token that the tokenizer declares for it.
        stop_ids: further ids that end a generation, from the model's generation config.
        bos_id: the id put before every text, if any.
    """

    ids: Mapping[Role, int] = field(default_factory=dict)
    stop_ids: frozenset[int] = frozenset()
    bos_id: int | None = None

    def names(self, token_id: int) -> bool:
        return token_id in self.stop_ids or token_id == self.bos_id or token_id in self.ids.values()


def is_filler(surface: str) -> bool:
    """Whether it only fills up the vocabulary (``[PAD151700]``, ``<unused12>``): never text, never used."""
    return _FILLER.fullmatch(surface) is not None


def is_control(token_id: int, surface: str, special: bool, declared: Declared) -> bool:
    """Whether an *added* token stands for no text.

    ``special`` is the tokenizer's own flag. Whitespace and HTML tags that it marks special are text
    pieces all the same; a declared token and a known end-of-turn marker is control even if unmarked.
    """
    if declared.names(token_id) or surface in END_OF_TURN:
        return True
    if not special:
        return False
    return not (surface.replace("▁", " ").isspace() or _HTML.fullmatch(surface))


def role_of(token_id: int, surface: str, declared: Declared) -> Role:
    """The role of a control token. An end token stays one when it is declared as pad or unk as well."""
    if token_id in declared.stop_ids or token_id == declared.ids.get(Role.EOS) or surface in END_OF_TURN:
        return Role.EOS
    if token_id == declared.bos_id:
        return Role.BOS
    if surface in END_OF_TEXT:
        return Role.EOS
    if surface in _START_OF_TURN:
        return Role.OTHER
    for role, known in ((Role.BOS, _BOS), (Role.UNK, _UNK), (Role.PAD, _PAD)):
        if token_id == declared.ids.get(role) or surface in known:
            return role
    return Role.OTHER


def build_vocabulary(
    tokens: list[bytes | None],
    surfaces: Mapping[int, str],
    declared: Declared,
    byte_fallback: Iterable[int] = (),
    *,
    dummy_prefix: bool = False,
) -> Vocabulary:
    """A vocabulary from the bytes of its text tokens and the surfaces of its control tokens (no fillers)."""
    controls = {i: Control(i, role_of(i, s, declared), s) for i, s in sorted(surfaces.items())}
    for i in controls:
        tokens[i] = None
    ends = frozenset(i for i, c in controls.items() if c.role is Role.EOS)
    eos_id = declared.ids.get(Role.EOS)
    return Vocabulary(
        tokens=tuple(tokens),
        controls=controls,
        stop_ids=ends | declared.stop_ids,
        bos_id=declared.bos_id,
        eos_id=eos_id if eos_id in ends else None,
        byte_fallback=frozenset(byte_fallback),
        dummy_prefix=dummy_prefix,
    )
