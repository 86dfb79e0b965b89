"""What :func:`anydraft.bench.check.check` finds out about a pair, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from anydraft.bench.best_case import BestCase
from anydraft.bench.controls import ControlPair
from anydraft.bench.lost import LostToken, ScriptOverlap


@dataclass(frozen=True)
class SideReport:
    """One model of the pair.

    Attributes:
        name: as the user gave it.
        architecture: its ``model_type``.
        tokenizer: its kind, such as "byte-level BPE".
        num_parameters: None where it cannot be told without the weights.
        vocab_size: rows of the embedding.
        text_tokens: ids that stand for text.
        padded_rows: rows that stand for nothing: never proposed.
        max_context: tokens.
        chat_template: whether it has one.
        bos: what is put before every text, or None.
        changes: kinds of text that do not come back byte for byte from the tokenizer.
    """

    name: str
    architecture: str
    tokenizer: str
    num_parameters: int | None
    vocab_size: int
    text_tokens: int
    padded_rows: int
    max_context: int
    chat_template: bool
    bos: str | None
    changes: tuple[str, ...]


@dataclass(frozen=True)
class VocabularyReport:
    """How the two vocabularies meet, by the bytes of their tokens.

    Attributes:
        relation: "same" (sizes aside), "nearly the same" (a few ids differ) or "different".
        num_common_ids: ids that both tokenizers know.
        num_differing_ids: of those, the ids that do not stand for the same.
        differing_ids: the first few of them.
        equal_size: whether both models have equally many rows. It says nothing about the contents.
        target_overlap, draft_overlap: share of the text tokens of the one that the other has too, 0 to 1.
    """

    relation: str
    num_common_ids: int
    num_differing_ids: int
    differing_ids: tuple[int, ...]
    equal_size: bool
    target_overlap: float
    draft_overlap: float


@dataclass(frozen=True)
class TextReport:
    """The pair on one kind of text.

    Attributes:
        kind: such as "Python code"; "your text" for the user's own.
        num_bytes: of the text in UTF-8.
        target_tokens, draft_tokens: tokens of either side for it.
        expressible: share of the target's tokens here that the draft has, 0 to 1.
        forbidden: share of the draft's tokens here that the token rule cannot propose, 0 to 1.
        target_bytes_per_token, draft_bytes_per_token: means. A draft whose tokens are longer needs fewer
            of them for one target token.
        best: acceptance lengths of a draft that never errs.
        target_exact, draft_exact: whether the tokens give the text back byte for byte.
        lost: the most frequent target tokens here that the draft lacks.
    """

    kind: str
    num_bytes: int
    target_tokens: int
    draft_tokens: int
    expressible: float
    forbidden: float
    target_bytes_per_token: float
    draft_bytes_per_token: float
    best: BestCase
    target_exact: bool
    draft_exact: bool
    lost: tuple[LostToken, ...]


@dataclass(frozen=True)
class Advice:
    """What to do with the pair.

    Attributes:
        method: what ``method="auto"`` takes.
        why: the reason for it.
        against: reasons why the pair is not advised; none if it is.
        notes: what else the user should know.
    """

    method: str
    why: str
    against: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def advised(self) -> bool:
        return not self.against


@dataclass(frozen=True)
class CheckReport:
    """Everything about a pair.

    Attributes:
        target, draft: the two sides.
        vocabulary: how their vocabularies meet.
        controls: the target's control tokens and how they meet the draft's.
        texts: the pair on each kind of text, the user's own first.
        scripts: the target's tokens by script, and how many of them the draft has.
        advice: what to do.
    """

    target: SideReport
    draft: SideReport
    vocabulary: VocabularyReport
    controls: tuple[ControlPair, ...]
    texts: tuple[TextReport, ...]
    scripts: tuple[ScriptOverlap, ...]
    advice: Advice

    @property
    def exit_code(self) -> int:
        """0: works; 1: works, but is not advised."""
        return 0 if self.advice.advised else 1

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings, for JSON."""
        verdict = "works" if self.advice.advised else "works, not advised"
        return {"verdict": verdict, "exit_code": self.exit_code, **dataclasses.asdict(self)}
