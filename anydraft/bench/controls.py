"""The control tokens of a pair side by side."""

from __future__ import annotations

from dataclasses import dataclass

from anydraft.bench.lost import show
from anydraft.vocab.bridge import Bridge
from anydraft.vocab.vocabulary import Control, Role, Vocabulary

_ORDER = (Role.EOS, Role.BOS, Role.PAD, Role.UNK, Role.OTHER)


@dataclass(frozen=True)
class ControlPair:
    """A control token of the target and what the draft has for it.

    Attributes:
        role: "eos", "bos", "pad", "unk" or "other".
        target_id, target: id and surface.
        draft_id, draft: of the draft's token that stands for it in the draft's context; None where there
            is none.
        proposed: whether the draft can propose it.
        meeting: how the two meet, in words.
    """

    role: str
    target_id: int
    target: str
    draft_id: int | None
    draft: str | None
    proposed: bool
    meeting: str


def control_pairs(bridge: Bridge) -> tuple[ControlPair, ...]:
    """Every control token of the target, end tokens first, those with a counterpart before the others."""
    pairs = [_pair(c, bridge) for c in _controls(bridge.target)]
    order = [role.value for role in _ORDER]
    return tuple(sorted(pairs, key=lambda p: (order.index(p.role), p.draft_id is None, p.target_id)))


def proposable_ends(bridge: Bridge) -> frozenset[int]:
    """The target's end tokens that the draft can propose."""
    mapped = {int(bridge.draft_to_target[c.id]) for c in _controls(bridge.draft)}
    return frozenset(mapped & bridge.target.stop_ids)


def surface(vocabulary: Vocabulary, token_id: int) -> str:
    """How a token is shown: a control token as the tokenizer writes it, text quoted."""
    control = vocabulary.controls.get(token_id)
    return control.surface if control else show(vocabulary.tokens[token_id] or b"")


def _controls(vocabulary: Vocabulary) -> list[Control]:
    """Control tokens, and the text tokens that a generation config has end a generation."""
    text = [i for i in vocabulary.stop_ids if i < len(vocabulary) and vocabulary.tokens[i]]
    return [*vocabulary.controls.values(), *(Control(i, Role.EOS, surface(vocabulary, i)) for i in text)]


def _pair(control: Control, bridge: Bridge) -> ControlPair:
    draft_id = int(bridge.target_to_draft[control.id])
    proposed = bool((bridge.draft_to_target == control.id).any())
    draft = surface(bridge.draft, draft_id) if draft_id >= 0 else None
    return ControlPair(
        role=control.role.value,
        target_id=control.id,
        target=control.surface,
        draft_id=draft_id if draft_id >= 0 else None,
        draft=draft,
        proposed=proposed,
        meeting=_meeting(control, draft, proposed),
    )


def _meeting(control: Control, draft: str | None, proposed: bool) -> str:
    if control.role in (Role.PAD, Role.UNK):
        return "never crosses"
    if draft is None:
        if control.role is Role.BOS:
            return "the draft has none"
        return "none; the draft sees it as text"
    how = "same surface" if draft == control.surface else "by role"
    return how if proposed or control.role is not Role.EOS else how + "; the draft cannot propose it"
