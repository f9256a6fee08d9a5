"""Writes a report: tables, plots and the notes that belong to them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.files import write_text, writing
from evaluation.report import plots
from evaluation.report.entries import entries, main_entries
from evaluation.report.formats import display, main_csv, to_latex, to_markdown
from evaluation.report.notes import notes
from evaluation.report.runs import read_runs
from evaluation.report.tables import frame

LEGEND = (
    "Accuracy in per cent ± its standard error. Speedup: generation time of one-token full recompute over that of the "
    "row, same prompts, in turn, one process, with its 95 % bootstrap interval; it is the product of what caching "
    "gives (full recompute with the row's commit rule over the row) and of what parallel decoding gives. Rows "
    "computed, refreshes and deciding are shares of all rows, of all steps and of generation time. A starred row is "
    "not finished and has no figures; – is not measured. Tokens/s are those of the paired timing, and of the scored "
    "run where there is none."
)


@dataclass(frozen=True)
class ReportPaths:
    """What was written."""

    folder: Path
    tables: Mapping[str, Path]  # by name, the Markdown file; .csv and .tex lie beside it
    plots: Mapping[str, Path]  # by title, the PNG; .svg lies beside it
    main: pd.DataFrame  # the main table, for `format_table`
    notes: list[str]


def write_report(
    runs_root: Path | str,
    out: Path | str,
    title: str,
    *,
    models: Collection[str] = (),
    benchmarks: Collection[str] = (),
    methods: Collection[str] = (),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> ReportPaths:
    """Writes the report of all runs under a folder. The same runs give the same files, to the byte.

    Args:
        runs_root: `results/runs`, or any folder laid out like it.
        out: folder of the report; its subfolder `plots` is emptied of plots that this report does not have.
        title: heading of the report.
        models, benchmarks, methods: names to keep; empty keeps all.
        defaults: settings by method name; the main table shows a method with these where it was run so.

    Raises:
        StoreError: no folder of runs, or the report cannot be written.
    """
    out = Path(out)
    runs = read_runs(runs_root, models=models, benchmarks=benchmarks, methods=methods)
    found = entries(runs)
    rows = main_entries(found, defaults)
    main, said = frame(rows), notes(runs, found)

    with writing(out):
        (out / "plots").mkdir(parents=True, exist_ok=True)
    caption = f"{title}. {LEGEND}"
    write_text(out / "main_table.csv", main_csv(main))
    write_text(out / "main_table.tex", to_latex(display(main), caption, "tab:main"))
    listed = "".join(f"- {note}\n" for note in said)
    text = f"# {title}\n\n{to_markdown(display(main))}\n{LEGEND}\n" + (f"\nNotes:\n\n{listed}" if said else "")
    write_text(out / "main_table.md", text)
    with writing(out / "plots"):
        drawn = plots.accuracy_against_speedup(main, out / "plots")
    return ReportPaths(out, {"main": out / "main_table.md"}, drawn, main, said)
