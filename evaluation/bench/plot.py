"""Seconds per generated token against the length of the sequence, a line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.report.plots import panels
from evaluation.report.style import style, title


def plot_growth(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Two panels, both axes logarithmic: a step after the first, and a token of a whole canvas."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    with panels(2) as (figure, axes):
        for axis, key, label in zip(
            axes, ("step_seconds", "seconds_per_token"), ("A step after the first", "A generated token"), strict=True
        ):
            for method in methods:
                own, look = [row for row in rows if row["method"] == method], style(method)
                axis.plot(
                    [row["rows"] for row in own],
                    [row[key] for row in own],
                    color=look.colour,
                    marker=look.marker,
                    linestyle=look.line,
                    label=title(method),
                )
            axis.set(xscale="log", yscale="log", xlabel="rows (prompt and canvas)", ylabel="seconds", title=label)
            axis.set_xticks(lengths := sorted({row["rows"] for row in rows}), labels=map(str, lengths), minor=False)
            axis.minorticks_off()
        axes[0].legend()
        figure.savefig(path, dpi=150)
