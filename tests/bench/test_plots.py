"""Pictures of a report."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anydraft.bench import plots
from anydraft.cli.main import app
from anydraft.errors import AnyDraftError


def row(name: str, speedups: list[float], positions: list[float], predicted: float | None) -> dict[str, Any]:
    ordered = sorted(speedups)
    return {
        "configuration": name,
        "speedup_median": ordered[len(ordered) // 2],
        "speedup_interval": [ordered[0], ordered[-1]],
        "per_position_acceptance": positions,
        "groups": [
            {
                "speedup": s,
                "decode_speedup": 1.05 * s,
                "predicted_decode_speedup": None if predicted is None else predicted * s,
            }
            for s in speedups
        ],
    }


def report(**changes: Any) -> dict[str, Any]:
    rows = [
        row("AR", [1.0] * 3, [], None),
        row("transformers-assisted <- models/a-draft", [0.6, 0.4, 1.9], [], None),
        row("auto <- models/smollm2-135m-instruct", [1.6, 2.1, 3.4], [0.8, 0.6, 0.5, 0.3], 1.02),
        row("slem <- models/smollm2-135m-instruct", [1.4, 1.9, 2.2], [0.7, 0.5, 0.4], 0.95),
        row("lookup", [0.98, 1.3, 3.0], [0.5, 0.4, 0.4], 1.2),
    ]
    batches = [{"batch_size": 1, "rows": rows}, {"batch_size": 8, "rows": [rows[0], rows[2]]}]
    made = {"target": "models/a-target", "prompts": ["a", "b", "c"], "temperature": 0.0, "batches": batches}
    return {**made, **changes}


def texts(figure: Any) -> str:
    from matplotlib.text import Text

    figure.canvas.draw()
    return "\n".join(t.get_text() for t in figure.findobj(Text))


def test_three_pictures_are_written(tmp_path: Path) -> None:
    given = json.loads(json.dumps(report()))
    files = plots.draw(given, tmp_path / "new")
    assert [f.name for f in files] == ["speedup.png", "survival.png", "predicted.png"]
    assert all(f.read_bytes().startswith(b"\x89PNG") and f.stat().st_size > 10_000 for f in files)


def test_speedups_show_every_configuration_its_interval_and_one() -> None:
    figure = plots._speedups(report())
    first, second = figure.axes
    assert [len(ax.patches) for ax in (first, second)] == [4, 1]
    assert [p.get_width() for p in first.patches] == [0.6, 2.1, 1.9, 1.3]
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in first.lines)
    said = texts(figure)
    assert "auto <- smollm2-135m-instruct" in said
    assert "models/" not in said
    assert first.patches[0].get_facecolor() != first.patches[1].get_facecolor()


def test_survival_begins_at_one_and_marks_differ() -> None:
    (ax,) = plots._survival(report()).axes
    assert next(list(line.get_ydata()) for line in ax.lines) == [1.0, 0.8, 0.6, 0.5, 0.3]
    assert len({line.get_marker() for line in ax.lines}) == len(ax.lines) == 3


def test_predicted_against_measured_has_a_point_a_prompt() -> None:
    (ax,) = plots._predicted(report()).axes
    points = [tuple(p) for c in ax.collections[1:] for p in c.get_offsets().tolist()]
    assert len(points) == 9
    assert points[0] == pytest.approx((1.02 * 1.6, 1.05 * 1.6))


def test_pictures_without_anything_to_show_are_left_out(tmp_path: Path) -> None:
    alone = [{"batch_size": 1, "rows": report()["batches"][0]["rows"][:2]}]
    assert [f.name for f in plots.draw(report(batches=alone), tmp_path)] == ["speedup.png"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AnyDraftError, match="--plots"):
        plots.draw(report(), tmp_path / "file")


def test_without_matplotlib_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else find(name, *a)
    )
    result = CliRunner().invoke(app, ["bench", "target", "draft", "--plots", "out"])
    assert result.exit_code == 2
    assert "pip install 'anydraft[plots]'" in result.stderr
