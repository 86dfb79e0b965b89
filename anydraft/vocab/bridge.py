"""How two vocabularies meet: by equal bytes, and control tokens by what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from anydraft.errors import PairError
from anydraft.vocab.controls import END_OF_TURN
from anydraft.vocab.vocabulary import Control, Role, Vocabulary

Ids = npt.NDArray[np.int64]


class Bridge:
    """The only way for an id from one vocabulary to the other.

    Text tokens meet by equal bytes. Several draft ids with the same bytes map to one target id (their
    probabilities add up there); of several target ids the ordinary piece with the lowest id is meant,
    and a byte-fallback piece only if there is no ordinary one. Control tokens never meet text:

    * end tokens meet each other: first by equal surface, then end-of-turn with end-of-turn and
      end-of-text with end-of-text where both have both kinds, else the other's main end token;
    * the BOS meets the BOS;
    * others meet by equal surface. Padding and unknown tokens meet nothing.

    Where the vocabularies agree on (nearly) every id, an id of the same contents maps to itself.

    Attributes:
        target, draft: the vocabularies.
        draft_to_target: int64 [len(draft)], the target id, -1 where there is none.
        target_to_draft: int64 [len(target)], the draft id that stands for it, -1 where there is none.
        differing: int64, ascending ids that both know and that do not stand for the same.
        num_common: ids that both know.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self.target = target
        self.draft = draft
        self.differing, self.num_common = _compare(target, draft)
        same_ids = self.nearly_same
        self.draft_to_target = _map(draft, target, same_ids)
        self.target_to_draft = _map(target, draft, same_ids)

    @classmethod
    def from_arrays(cls, target: Vocabulary, draft: Vocabulary, arrays: Mapping[str, Ids]) -> Bridge:
        """The bridge that :meth:`to_arrays` saved, for the same two vocabularies (by fingerprint).

        Raises:
            PairError: the arrays do not fit these vocabularies.
        """
        self = cls.__new__(cls)
        self.target = target
        self.draft = draft
        self.draft_to_target = np.asarray(arrays["draft_to_target"], dtype=np.int64)
        self.target_to_draft = np.asarray(arrays["target_to_draft"], dtype=np.int64)
        self.differing = np.asarray(arrays["differing"], dtype=np.int64)
        self.num_common = int(arrays["num_common"])
        if (len(self.target_to_draft), len(self.draft_to_target)) != (len(target), len(draft)):
            raise PairError(
                f"the saved bridge is for vocabularies of {len(self.target_to_draft)} and "
                f"{len(self.draft_to_target)} ids, not {len(target)} and {len(draft)}; delete it"
            )
        return self

    def to_arrays(self) -> dict[str, Ids]:
        """Everything but the vocabularies, for ``numpy.savez``."""
        return {
            "draft_to_target": self.draft_to_target,
            "target_to_draft": self.target_to_draft,
            "differing": self.differing,
            "num_common": np.asarray(self.num_common, dtype=np.int64),
        }

    @cached_property
    def intersection(self) -> Ids:
        """Ascending draft ids that map to a target id, int64."""
        return np.flatnonzero(self.draft_to_target >= 0)

    @property
    def same_vocabulary(self) -> bool:
        """Whether every id that both tokenizers know stands for the same in both (sizes do not matter)."""
        return self.num_common > 0 and len(self.differing) == 0

    @property
    def nearly_same(self) -> bool:
        """Whether the vocabularies agree but for at most one id in a hundred of those that both know."""
        return self.num_common > 0 and len(self.differing) * 100 <= self.num_common

    @cached_property
    def draft_overlap(self) -> float:
        """Share of the draft's text tokens that have a target token, 0 to 1."""
        return _share(self.draft, self.draft_to_target)

    @cached_property
    def target_overlap(self) -> float:
        """Share of the target's text tokens that have a draft token, 0 to 1."""
        return _share(self.target, self.target_to_draft)


def _compare(a: Vocabulary, b: Vocabulary) -> tuple[Ids, int]:
    """Ascending ids with different contents, and how many ids both know."""
    differing = []
    common = 0
    for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if x is None or y is None:
            c, d = a.controls.get(i), b.controls.get(i)
            if (x is None and c is None) or (y is None and d is None):
                continue  # a filler or padded row in one of them
            same = c is not None and d is not None and c.surface == d.surface
        else:
            same = x == y
        common += 1
        if not same:
            differing.append(i)
    return np.array(differing, dtype=np.int64), common


def _map(source: Vocabulary, to: Vocabulary, same_ids: bool) -> Ids:
    """For each id of ``source`` the id of ``to``, -1 where there is none."""
    fallback = to.byte_fallback
    tokens = to.tokens
    by_bytes = {b: i for i in sorted(fallback, reverse=True) if (b := tokens[i])}
    by_bytes.update({b: i for i in range(len(tokens) - 1, -1, -1) if (b := tokens[i]) and i not in fallback})
    find = by_bytes.get
    mapped = np.fromiter(
        (find(b, -1) if b else -1 for b in source.tokens), dtype=np.int64, count=len(source.tokens)
    )
    if same_ids:
        n = min(len(source), len(to))
        for i in np.flatnonzero(mapped[:n] != np.arange(n)):
            if source.tokens[i] and source.tokens[i] == tokens[i]:
                mapped[i] = i
    for i, control in source.controls.items():
        mapped[i] = _map_control(control, source, to)
    return mapped


def _map_control(control: Control, source: Vocabulary, to: Vocabulary) -> int:
    if control.role in (Role.PAD, Role.UNK):
        return -1
    same_role = [c for c in to.controls.values() if (c.role is Role.EOS) == (control.role is Role.EOS)]
    for c in same_role:
        if c.surface == control.surface and c.role not in (Role.PAD, Role.UNK):
            return c.id
    if control.role is Role.EOS:
        return _map_end(control, source, to)
    if control.role is Role.BOS:
        if to.bos_id is not None:
            return to.bos_id
        return min((c.id for c in same_role if c.role is Role.BOS), default=-1)
    return -1


def _map_end(control: Control, source: Vocabulary, to: Vocabulary) -> int:
    """The end token of ``to`` that is used where ``source`` uses ``control``.

    A vocabulary without any end-of-turn marker ends turns with its end-of-text token, so that one
    meets the main end token of the other, whichever kind it is.
    """

    def is_turn(c: Control) -> bool:
        return c.surface in END_OF_TURN

    def preference(c: Control) -> tuple[bool, bool, bool, int]:
        other_kind = turns_marked and is_turn(c) != is_turn(control)
        return other_kind, c.id != to.eos_id, not is_turn(c), c.id

    turns_marked = any(is_turn(c) for c in source.controls.values() if c.role is Role.EOS)
    ends = (c for c in to.controls.values() if c.role is Role.EOS)
    best = min(ends, key=preference, default=None)
    return -1 if best is None else best.id


def _share(vocabulary: Vocabulary, mapped: Ids) -> float:
    text = np.fromiter((bool(b) for b in vocabulary.tokens), dtype=bool, count=len(vocabulary))
    return float((mapped[text] >= 0).mean()) if text.any() else 0.0
