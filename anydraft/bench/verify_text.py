"""A :class:`~anydraft.bench.verify_report.VerifyReport` for people."""

from __future__ import annotations

from collections.abc import Sequence

from anydraft.bench.markdown import code, table
from anydraft.bench.verify_report import Comparison, Difference, SamplingCheck, VerifyReport


def to_markdown(report: VerifyReport) -> str:
    """Verdict, tables, and each difference."""
    parts = [
        f"# {report.target} <- {report.draft}, {report.dtype}",
        f"**{_verdict(report)}**",
        *_comparisons(report.comparisons, "greedy", "Greedy: the target's own tokens?"),
        *_sampling(report),
        *_comparisons(
            report.comparisons, "coupled", f"Coupled, temperature {report.temperature:g}: one seed, one text?"
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(report: VerifyReport) -> str:
    mismatches = sum(c.num_mismatches for c in report.comparisons)
    flagged = sum(bool(s.flagged) for s in report.sampling)
    if report.lossless:
        ties = sum(c.num_ties for c in report.comparisons)
        return "Lossless." if not ties else f"Lossless: {ties} ties within numerical noise, no mismatch."
    wrong = []
    if mismatches:
        wrong.append(f"{mismatches} outputs are not the target's")
    if flagged:
        wrong.append(f"sampled tokens of {flagged} runs do not follow the target's probabilities")
    return f"NOT lossless: {' and '.join(wrong)}."


def _comparisons(comparisons: Sequence[Comparison], mode: str, title: str) -> list[str]:
    chosen = [c for c in comparisons if c.mode == mode]
    if not chosen:
        return []
    rows = [
        (
            c.method,
            c.batch_size,
            c.num_outputs,
            c.num_tokens,
            _accepted(c.num_accepted_tokens, c.num_draft_tokens),
            c.num_identical,
            c.num_ties if c.largest_gap is None else f"{c.num_ties} (gap up to {c.largest_gap:.3g})",
            c.num_mismatches,
        )
        for c in chosen
    ]
    header = ("method", "batch", "outputs", "tokens", "accepted", "identical", "ties", "mismatches")
    parts = [f"## {title}", table(header, rows, "lrrrrrrr")]
    differences = {
        (d.prompt_id, d.position, d.own_id, d.drafted_id): d for c in chosen for d in c.differences
    }
    if differences:
        parts.append("\n".join(_line(d) for d in differences.values()))
    return parts


def _line(d: Difference) -> str:
    if d.gap is None:
        ended = "with a draft" if d.drafted_id is None else "alone"
        return f"- {d.prompt_id}, token {d.position + 1}: the output {ended} ends here: {d.verdict}"
    ranks = "the two best" if d.top_two else f"the worse {d.behind:.4g} behind the best"
    return (
        f"- {d.prompt_id}, token {d.position + 1}: {code(repr(d.own_text))} alone, "
        f"{code(repr(d.drafted_text))} with a draft; in {d.reference} {ranks}, {d.gap:.4g} apart, "
        f"noise {d.noise:.3g}, allowed {d.bound:.3g}: {d.verdict}"
    )


def _sampling(report: VerifyReport) -> list[str]:
    if not report.sampling:
        return []
    rows = [_sampling_row(check) for check in report.sampling]
    header = ("method", "rule", "contexts", "draws", "accepted", "tests", "smallest p", "verdict")
    title = f"## Sampling, temperature {report.temperature:g}: the target's own probabilities?"
    total = sum(len(check.tests) for check in report.sampling)
    note = (
        f"{total} tests in all (Holm); a lossless engine has any of them flagged with probability "
        f"{report.false_alarm:g}."
    )
    parts = [title, table(header, rows, "llrrrrrl"), note]
    flagged = [
        f"- {check.method}, {check.verification}: {test.name} of {test.of}, {test.num_draws} tokens: "
        f"p = {test.result.p_value:.3g}"
        for check in report.sampling
        for test in check.flagged
    ]
    return [*parts, "\n".join(flagged)] if flagged else parts


def _sampling_row(check: SamplingCheck) -> tuple[object, ...]:
    smallest = check.smallest
    return (
        "the target alone" if check.method == "none" else check.method,
        "" if check.method == "none" else check.verification,
        check.num_contexts,
        check.num_draws,
        _accepted(check.num_accepted_tokens, check.num_draft_tokens),
        len(check.tests),
        "" if smallest is None else f"{smallest.result.p_value:.2g}",
        "flagged" if check.flagged else "good",
    )


def _accepted(accepted: int, drafted: int) -> str:
    return f"{accepted} of {drafted}" if drafted else "nothing drafted"
