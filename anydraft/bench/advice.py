"""Whether a pair is worth using, with which method, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anydraft.bench.best_case import NUM_SPECULATIVE_TOKENS, BestCase
from anydraft.bench.controls import proposable_ends, surface
from anydraft.bench.report import Advice, SideReport, TextReport, VocabularyReport
from anydraft.methods.select import choose
from anydraft.vocab.bridge import Bridge

MIN_BEST_CASE = 2.0
"""Target tokens a target call that a draft which never errs must reach on some kind of text.

A real draft of another family adds about 0.4 of the tokens that a perfect one adds, so that 2.0 means 1.4
in practice, and a step with drafts costs 1.2 to 2 times one without.
"""

MAX_DRAFT_SIZE = 0.6
"""Parameters of the draft for each of the target.

A draft of another family is accepted at about 0.6 on its first token: with one draft a step, 1.6 tokens
for the price of 1 + this.
"""


def advise(
    bridge: Bridge,
    target: SideReport,
    draft: SideReport,
    vocabulary: VocabularyReport,
    texts: Sequence[TextReport],
) -> Advice:
    """Advice for a pair, by ``texts``: those that the user cares about."""
    method = choose(bridge)
    return Advice(
        method=method,
        why=_why(method, vocabulary, texts),
        against=tuple(_against(method, target, draft, texts)),
        notes=tuple(_notes(method, bridge, target, draft, vocabulary, texts)),
    )


def ceiling(method: str, best: BestCase) -> float:
    """The acceptance length that ``method`` would reach with a draft that never errs."""
    return best.token_rule if method in ("standard", "tli") else best.string_rule


def _why(method: str, vocabulary: VocabularyReport, texts: Sequence[TextReport]) -> str:
    if method == "standard":
        if vocabulary.relation == "same":
            return "both models have the same vocabulary: ids cross as they are, at full speed"
        return (
            f"the vocabularies are the same but for {vocabulary.num_differing_ids} of "
            f"{vocabulary.num_common_ids} ids, which are never proposed; the others cross as they are"
        )
    tokens, strings = _mean(texts, "tli"), _mean(texts, "slem")
    figures = (
        f"a draft that never errs would give {strings:.1f} target tokens a call by text (slem) and "
        f"{tokens:.1f} by tokens (tli), with {NUM_SPECULATIVE_TOKENS} draft tokens a step"
    )
    if strings >= tokens:
        return f"the vocabularies differ, and text gets more across than tokens do: {figures}"
    return f"the vocabularies differ: {figures}; compare it with --method tli"


def _mean(texts: Sequence[TextReport], method: str) -> float:
    return sum(ceiling(method, t.best) for t in texts) / len(texts)


def _against(
    method: str, target: SideReport, draft: SideReport, texts: Sequence[TextReport]
) -> Iterator[str]:
    best = max(ceiling(method, t.best) for t in texts)
    if best < MIN_BEST_CASE:
        yield (
            f"even a draft that never errs would give only {best:.2f} target tokens a call with {method}, "
            f"less than {MIN_BEST_CASE:.1f} on every kind of text; choose a draft whose tokenizer is closer"
        )
    if target.num_parameters and draft.num_parameters:
        size = draft.num_parameters / target.num_parameters
        if size > MAX_DRAFT_SIZE:
            yield (
                f"the draft has {millions(draft.num_parameters)} parameters, {size:.2f} times the target's "
                f"{millions(target.num_parameters)}; above {MAX_DRAFT_SIZE} a draft costs more than it "
                "saves: choose a smaller draft or a larger target"
            )


def _notes(
    method: str,
    bridge: Bridge,
    target: SideReport,
    draft: SideReport,
    vocabulary: VocabularyReport,
    texts: Sequence[TextReport],
) -> Iterator[str]:
    if vocabulary.equal_size and vocabulary.relation == "different":
        yield (
            f"both vocabularies have {target.vocab_size} rows but different contents "
            f"({vocabulary.num_differing_ids} of {vocabulary.num_common_ids} ids): software that compares "
            "sizes only would take them for one and corrupt the output; here tokens are matched by bytes"
        )
    poor = [t.kind for t in texts if ceiling(method, t.best) < MIN_BEST_CASE]
    if poor and len(poor) < len(texts):
        yield f"expect no gain on {', '.join(poor)}: the draft's tokens are too short there"
    yield from _end_notes(bridge)
    yield from _chat_notes(target, draft)
    for side, other in ((target, "draft's proposals"), (draft, "draft's view of the text")):
        if side.changes:
            yield (
                f"the tokenizer of {side.name} does not give back {', '.join(side.changes)}: where they "
                f"occur the {other} may be off, which costs acceptance, never correctness"
            )
    if draft.max_context < target.max_context:
        yield (
            f"the draft's context ({draft.max_context}) is shorter than the target's ({target.max_context}): "
            "longer texts go on with a window of the text for the draft, or undrafted, without loss"
        )


def _end_notes(bridge: Bridge) -> Iterator[str]:
    ends = bridge.target.stop_ids
    proposable = proposable_ends(bridge)
    main = bridge.target.eos_id
    if not ends:
        yield "the target declares no end token: generations end at max_tokens or at a stop string"
    elif not proposable:
        yield "the draft cannot propose a stop: the target's end token always costs a call of its own"
    elif main is not None and main not in proposable:
        yield (
            f"the draft cannot propose {surface(bridge.target, main)}, the target's main end token: it costs "
            "a call of its own"
        )


def _chat_notes(target: SideReport, draft: SideReport) -> Iterator[str]:
    if not target.chat_template:
        yield "the target has no chat template: raw prompts only"
    elif not draft.chat_template:
        yield (
            "the draft has no chat template: in a chat it sees the target's rendering, markers without a "
            "counterpart as text"
        )


def millions(count: int) -> str:
    """Such as 135M or 1.54B."""
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
