"""A :class:`~anydraft.bench.report.CheckReport` for people, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from anydraft.bench.advice import MAX_DRAFT_SIZE, MIN_BEST_CASE, millions
from anydraft.bench.best_case import NUM_SPECULATIVE_TOKENS
from anydraft.bench.markdown import code, table
from anydraft.bench.report import CheckReport, SideReport

_MOST_CONTROLS = 8
_MOST_EXAMPLES = 6
_MOST_SCRIPTS = 8
_SMALL_SCRIPT = 0.005


def to_markdown(report: CheckReport) -> str:
    """The whole report."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: CheckReport) -> Iterator[str]:
    yield f"# {report.target.name} <- {report.draft.name}"
    yield _verdict(report)
    yield _sides(report.target, report.draft)
    yield "## Vocabularies"
    yield _vocabulary(report)
    yield "## By kind of text"
    yield _texts(report)
    yield (
        "`only in target`: share of the target's tokens that the draft lacks. `forbidden`: share of the draft's "
        "tokens that the token rule cannot propose. `tli` and `slem`: target tokens a target call with a draft "
        f"that never errs, {NUM_SPECULATIVE_TOKENS} draft tokens a step; of what it adds to 1, real "
        "drafts of another family added about 0.4."
    )
    if report.vocabulary.target_overlap < 1:
        yield "## What the draft lacks"
        yield from _lost(report)
    yield "## Control tokens"
    yield from _controls(report)


def _verdict(report: CheckReport) -> str:
    advice = report.advice
    lines = ["**Works.**" if advice.advised else "**Works, but is not advised.**"]
    lines += [f"- Against it: {reason}." for reason in advice.against]
    lines.append(f"- Method: `{advice.method}`: {advice.why}.")
    lines += [f"- {note[0].upper()}{note[1:]}." for note in advice.notes]
    lines.append(
        f"- Not advised is a pair that reaches less than {MIN_BEST_CASE:.1f} target tokens a call on every kind "
        f"of text even with a draft that never errs, or whose draft has more than {MAX_DRAFT_SIZE} of the "
        "target's parameters."
    )
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _sides(target: SideReport, draft: SideReport) -> str:
    def row(side: SideReport) -> list[str]:
        return [
            side.name,
            side.architecture,
            "unknown" if side.num_parameters is None else millions(side.num_parameters),
            side.tokenizer,
            f"{side.vocab_size:,}",
            f"{side.padded_rows:,}",
            f"{side.max_context:,}",
            "yes" if side.chat_template else "no",
            "none" if side.bos is None else code(side.bos),
        ]

    return table(
        ["", "target", "draft"],
        zip(
            [
                "name",
                "architecture",
                "parameters",
                "tokenizer",
                "vocabulary rows",
                "of which stand for nothing",
                "context",
                "chat template",
                "BOS before a text",
            ],
            row(target),
            row(draft),
            strict=True,
        ),
    )


def _vocabulary(report: CheckReport) -> str:
    v = report.vocabulary
    if v.relation == "same":
        first = f"The same: all {v.num_common_ids:,} ids that both know stand for the same."
    elif v.relation == "nearly the same":
        ids = ", ".join(map(str, v.differing_ids))
        more = ", …" if v.num_differing_ids > len(v.differing_ids) else ""
        first = f"Nearly the same: {v.num_differing_ids:,} of {v.num_common_ids:,} common ids differ ({ids}{more})."
    else:
        first = "Different."
    return (
        f"{first} By bytes, {v.target_overlap:.1%} of the target's {report.target.text_tokens:,} text tokens are "
        f"the draft's as well, and {v.draft_overlap:.1%} of the draft's {report.draft.text_tokens:,} the target's."
    )


def _texts(report: CheckReport) -> str:
    def exact(target: bool, draft: bool) -> str:
        lacking = [name for name, good in (("target", target), ("draft", draft)) if not good]
        return "not by " + " and ".join(lacking) if lacking else "yes"

    rows = [
        [
            t.kind,
            f"{1 - t.expressible:.1%}",
            f"{t.forbidden:.1%}",
            f"{t.target_bytes_per_token:.2f}",
            f"{t.draft_bytes_per_token:.2f}",
            f"{t.best.token_rule:.2f}",
            f"{t.best.string_rule:.2f}",
            exact(t.target_exact, t.draft_exact),
        ]
        for t in report.texts
    ]
    header = [
        "text",
        "only in target",
        "forbidden",
        "bytes a target token",
        "bytes a draft token",
        "tli",
        "slem",
        "given back exactly",
    ]
    return table(header, rows, "lrrrrrrl")


def _lost(report: CheckReport) -> Iterator[str]:
    examples = [
        [t.kind, ", ".join(f"{code(lost.text)} x {lost.count}" for lost in t.lost[:_MOST_EXAMPLES])]
        for t in report.texts
        if t.lost
    ]
    if examples:
        yield table(["text", "most frequent target tokens that the draft lacks"], examples)
    total = report.target.text_tokens
    large = [
        s for s in report.scripts if s.num_tokens >= _SMALL_SCRIPT * total and s.num_common < s.num_tokens
    ]
    rows = [
        [
            s.script,
            f"{s.num_tokens:,}",
            f"{s.num_tokens - s.num_common:,}",
            f"{s.num_common / s.num_tokens:.1%}",
        ]
        for s in large[:_MOST_SCRIPTS]
    ]
    if rows:
        yield table(["script", "target tokens", "lost", "the draft has"], rows, "lrrr")


def _controls(report: CheckReport) -> Iterator[str]:
    if not report.controls:
        yield "The target's tokenizer has none."
        return
    rows = [
        [
            c.role,
            f"{code(c.target)} ({c.target_id})",
            "none" if c.draft is None else f"{code(c.draft)} ({c.draft_id})",
            c.meeting,
        ]
        for c in report.controls
    ]
    yield table(["role", "target", "draft", "how they meet"], rows[:_MOST_CONTROLS])
    if len(rows) > _MOST_CONTROLS:
        yield f"… and {len(rows) - _MOST_CONTROLS} more of the target."
