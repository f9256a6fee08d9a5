"""One sweep as a table and a plot: the settings that were swept, and what each job gave, failed jobs included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.files import write_text
from evaluation.report.formats import to_csv, to_markdown
from evaluation.report.plots import legend_below, panels, save
from evaluation.report.style import SERIES
from evaluation.runs import load_run
from evaluation.statistics import figures

FIGURES = ("tokens_per_second", "tokens_per_forward", "recompute_ratio", "refresh_rate", "decision_share")
PANELS = {
    "accuracy": "accuracy (%)",
    "recompute_ratio": "rows recomputed (%)",
    "refresh_rate": "steps that refresh (%)",
}


@dataclass(frozen=True)
class SweepJob:
    """One job: its overrides, and the folder of its run or the error that it ended with."""

    overrides: Mapping[str, str]
    folder: Path | None
    error: str | None = None


def sweep_table(jobs: Sequence[SweepJob]) -> pd.DataFrame:
    """A row a job, in the order given: the overrides that differ between jobs, its state, its figures (NaN where there
    are none).

    Seconds are those of the runs themselves, not of a paired measurement: `scripts/speed.py` compares speed.
    """
    names = dict.fromkeys(name for job in jobs for name in job.overrides)
    swept = [name for name in names if len({job.overrides.get(name) for job in jobs}) > 1]
    return pd.DataFrame([{name: job.overrides.get(name, "") for name in swept} | _figures(job) for job in jobs])


def _figures(job: SweepJob) -> dict[str, Any]:
    row: dict[str, Any] = {
        "state": "done",
        "n": pd.NA,
        **dict.fromkeys(("accuracy", "accuracy_se", *FIGURES), float("nan")),
    }
    if job.folder is None:
        return row | {"state": f"failed: {job.error}"}
    run = load_run(job.folder)
    if run.status != "done" or run.scores is None:
        return row | {"state": f"{run.status} {run.note}".strip()}
    shown = run.scores["accuracy"][run.scores["shown"]]
    cost = figures(run.samples)
    row |= {"n": cost.n, "accuracy": shown["mean"], "accuracy_se": shown["se"]}
    return row | {name: getattr(cost, name) for name in FIGURES}


def write_sweep(jobs: Sequence[SweepJob], out: Path) -> pd.DataFrame:
    """Write sweep.csv, sweep.md and, where a swept setting is numeric, sweep.png and sweep.svg; returns the table."""
    table = sweep_table(jobs)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "sweep.csv", to_csv(table))
    write_text(out / "sweep.md", f"# Sweep\n\n{to_markdown(table)}")
    swept = list(table.columns[: list(table.columns).index("state")])
    done = table[table["state"] == "done"]
    numeric = [name for name in swept if pd.to_numeric(done[name], errors="coerce").notna().all()]
    if len(done) > 1 and numeric:
        _plot(done, numeric[0], [name for name in swept if name != numeric[0]], out)
    return table


def _plot(table: pd.DataFrame, axis: str, lines: Sequence[str], out: Path) -> None:
    """Accuracy, rows recomputed and refreshes against one setting, a line for each combination of the others."""
    table = table.assign(**{axis: pd.to_numeric(table[axis])}).sort_values(axis)
    values = sorted(table[axis].unique())
    groups = table.groupby(list(lines), sort=False) if lines else [((), table)]
    with panels(len(PANELS), columns=3, size=(3.5, 3.1)) as (figure, axes):
        for number, (key, part) in enumerate(groups):
            colour, marker = SERIES[number % len(SERIES)]
            label = ", ".join(f"{name} = {value}" for name, value in zip(lines, key, strict=True))
            for ax, name in zip(axes, PANELS, strict=True):
                error = 100 * part["accuracy_se"] if name == "accuracy" else None
                x = [values.index(value) for value in part[axis]]
                ax.errorbar(
                    x, 100 * part[name], yerr=error, color=colour, marker=marker, capsize=2, label=label or None
                )
        for ax, heading in zip(axes, PANELS.values(), strict=True):
            ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
            ax.set(xlabel=axis, title=heading)
        if lines:
            legend_below(figure, axes, columns=3)
        save(figure, out, "sweep")
