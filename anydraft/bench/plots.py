"""Pictures of a bench: speed-ups, survival of acceptance, predicted against measured.

Colours are Okabe and Ito's, which colour-blind people tell apart; marks and line styles differ as well.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydraft.errors import AnyDraftError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", ":", "-", "--", "-.")
_PEER = "#8C8C8C"
_INK = "#333333"
_PER_INCH = 160

Row = Mapping[str, Any]


def require_matplotlib() -> None:
    """Raise UsageError where pictures cannot be drawn; to be asked before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plots needs matplotlib; install it with: pip install 'anydraft[plots]'")


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures of a report (:meth:`BenchReport.to_dict`) into ``folder``; the files.

    A picture for which there is nothing to show (no drafts, no prediction) is left out.

    Raises:
        AnyDraftError: the folder cannot be written.
    """
    pictures = {
        "speedup": _speedups(report),
        "survival": _survival(report),
        "predicted": _predicted(report),
    }
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in pictures.items():
            if figure is not None:
                path = folder / f"{name}.png"
                figure.savefig(path, dpi=_PER_INCH)
                written.append(path)
    except OSError as error:
        raise AnyDraftError(f"{folder} cannot be written: {error}; give --plots another folder") from error
    return written


def _speedups(report: Mapping[str, Any]) -> Figure | None:
    """A bar a configuration with its 95 % interval, each prompt's own speed-up as a dot, and a line at 1."""
    batches = report["batches"]
    counts = [len(batch["rows"]) - 1 for batch in batches]
    if not any(counts):
        return None
    figure = _figure(7.6, 1.5 + sum(0.42 * n + 0.55 for n in counts))
    axes = figure.subplots(len(batches), 1, sharex=True, squeeze=False, height_ratios=[n + 1 for n in counts])
    for batch, (ax,) in zip(batches, axes, strict=True):
        rows = batch["rows"][1:]
        for y, row in enumerate(rows):
            median, (low, high) = row["speedup_median"], row["speedup_interval"]
            colour = _PEER if _is_peer(row) else _COLOURS[0]
            ax.barh(y, median, 0.62, color=colour, alpha=0.85, zorder=2)
            ax.errorbar(
                median, y, xerr=[[median - low], [high - median]], color=_INK, capsize=3, lw=1.3, zorder=4
            )
            dots = [group["speedup"] for group in row["groups"]]
            ax.scatter(dots, [y] * len(dots), s=9, color="white", edgecolor=_INK, lw=0.6, zorder=3)
            end = max(high, *dots)
            ax.text(end, y, f"  {median:.2f}x", va="center", color=_INK, fontsize=9)
        ax.axvline(1.0, color=_INK, lw=1.2, zorder=5)
        ax.set_yticks(range(len(rows)), [_label(row) for row in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_title(f"batch {batch['batch_size']}", loc="left", fontsize=9.5, color=_INK)
        _plain(ax)
    ends = [
        max(r["speedup_interval"][1], *(g["speedup"] for g in r["groups"]))
        for b in batches
        for r in b["rows"]
    ]
    axes[-1, 0].set_xlim(0.0, 1.14 * max(ends))
    axes[-1, 0].set_xlabel("speed-up over the target alone: median, 95 % interval, each prompt (dots)")
    _title(figure, report, "Speed-up")
    return figure


def _survival(report: Mapping[str, Any]) -> Figure | None:
    """The share of drafts whose first i positions were all accepted."""
    batch = report["batches"][0]
    rows = [row for row in batch["rows"] if row["per_position_acceptance"]]
    if not rows:
        return None
    figure = _figure(7.6, 4.2)
    ax = figure.subplots()
    for row, colour, mark, line in zip(rows, _COLOURS, _MARKS, _LINES, strict=False):
        shares = [1.0, *row["per_position_acceptance"]]
        ax.plot(range(len(shares)), shares, line, marker=mark, color=colour, ms=6, lw=1.8, label=_label(row))
    longest = max(len(row["per_position_acceptance"]) for row in rows)
    ax.set_xticks(range(longest + 1))
    ax.set_ylim(0.0, 1.04)
    ax.set_xlabel("position in the draft")
    ax.set_ylabel("share of drafts accepted up to there")
    ax.legend(frameon=False, fontsize=9)
    _plain(ax)
    ax.grid(axis="y", color="#E4E4E4", lw=0.8)
    _title(figure, report, f"Survival of acceptance, batch {batch['batch_size']}")
    return figure


def _predicted(report: Mapping[str, Any]) -> Figure | None:
    """Speed-up by the cost model and the acceptance, against what was measured; a point a group of prompts."""
    batch = report["batches"][0]
    series = [(row, points) for row in batch["rows"][1:] if (points := _pairs(row))]
    if not series:
        return None
    figure = _figure(5.6, 5.4)
    ax = figure.subplots()
    ends = [value for _, points in series for point in points for value in point]
    low, high = 0.9 * min(ends), 1.08 * max(ends)
    ax.plot([low, high], [low, high], color=_INK, lw=1.0, zorder=1)
    ax.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="#EEEEEE", zorder=0)
    for (row, points), colour, mark in zip(series, _COLOURS, _MARKS, strict=False):
        x, y = zip(*points, strict=True)
        ax.scatter(
            x, y, s=38, marker=mark, color=colour, edgecolor="white", lw=0.6, label=_label(row), zorder=2
        )
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    ax.set_xlabel("predicted from acceptance and measured costs")
    ax.set_ylabel("measured")
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    _plain(ax)
    ax.grid(color="#E4E4E4", lw=0.8, zorder=0)
    _title(figure, report, "Speed-up of decoding (grey: within 10 %)")
    return figure


def _pairs(row: Row) -> list[tuple[float, float]]:
    """(predicted, measured) of each group for which both are known."""
    return [
        (group["predicted_decode_speedup"], group["decode_speedup"])
        for group in row["groups"]
        if group["predicted_decode_speedup"] is not None
    ]


def _is_peer(row: Row) -> bool:
    return str(row["configuration"]).startswith(("transformers", "vllm"))


def _label(row: Row) -> str:
    """Without the folders of a draft's name."""
    method, arrow, draft = row["configuration"].partition(" <- ")
    return f"{method}{arrow}{draft.rstrip('/').rpartition('/')[2]}"


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#AAAAAA")
    ax.tick_params(colors=_INK, labelsize=9)
    ax.set_axisbelow(True)


def _title(figure: Figure, report: Mapping[str, Any], what: str) -> None:
    target = str(report["target"]).rstrip("/").rpartition("/")[2]
    prompts: Sequence[str] = report["prompts"]
    figure.suptitle(
        f"{what}: {target}\n{len(prompts)} prompts, temperature {report['temperature']:g}",
        fontsize=10.5,
        color=_INK,
    )
