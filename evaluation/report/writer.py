"""Writes a report: tables as CSV, Markdown and LaTeX, plots, an overview in Markdown and the page."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.files import write_text, writing
from evaluation.report import page, plots, studies
from evaluation.report.decoding_picture import pictures, traces
from evaluation.report.entries import Entry, entries, is_reference, main_entries
from evaluation.report.findings import findings
from evaluation.report.formats import display, grid, main_csv, readable, to_csv, to_latex, to_markdown
from evaluation.report.notes import notes
from evaluation.report.reference import OTHER, Published, claim_rows, read_published, table_rows
from evaluation.report.runs import DONE, Run, read_runs
from evaluation.report.style import base
from evaluation.report.tables import AXES, accuracy_rows, frame, overhead_rows, phase_rows, sweep_rows

MAIN = (
    "Accuracy in per cent ± its standard error, over all items (a micro mean where there are subtasks). Speedup: "
    "generation time of one-token full recompute over that of the row, same prompts, in turn, one process, with its "
    "95 % bootstrap interval; it is the product of what caching gives (full recompute with the row's commit rule over "
    "the row) and of what parallel decoding gives. Rows computed, refreshes and deciding are shares of all rows, of "
    "all steps and of generation time. A starred row has no finished run, and no figures but those of a paired timing; "
    "– is not measured. Tokens/s are those of the paired timing, and of the scored run where there is none."
)
ACCURACY = (
    "The verdict that the main table shows, and the others beside it; micro means count every item, macro means every "
    "subtask the same. p: exact McNemar test against one-token full recompute on the samples that both have; only "
    "reference and only method: samples that one of the two alone got right. Empty and truncated: answers without a "
    "token, and without an end."
)
OVERHEAD = (
    "Share of generation time spent only to decide what to compute, part by part, from the paired timings. Unfused "
    "attention: what a method that reads attention weights loses by the slower attention path."
)
PHASES = "Milliseconds of generation time a prompt, by phase, from the paired timings."
SWEEP = "EntropyCache over its threshold tau (nats) and its number k of recent tokens: accuracy in per cent ± standard "
SWEEP += "error · speedup over one-token full recompute."
CLAIMS = f"Lowest and highest figure here of what each claim speaks of. {OTHER}"
TABLES = f"Published speedup: throughput over that of full recompute in the same published setting. {OTHER}"


@dataclass(frozen=True)
class Table:
    """One table in all its forms; `entries` are its rows' runs, for the page."""

    name: str
    heading: str
    caption: str
    csv: str
    shown: Mapping[str, pd.DataFrame]  # by heading; "" where there is but one
    entries: Sequence[Entry] = ()

    def markdown(self) -> str:
        parts = [
            f"### {heading}\n\n{to_markdown(t)}" if heading else to_markdown(t) for heading, t in self.shown.items()
        ]
        return "\n".join([*parts, f"{self.caption}\n"])

    def latex(self) -> str:
        label = f"tab:{self.name.replace('_', '-')}"
        captions = [" ".join(filter(None, (f"{self.heading}.", h and f"{h}.", self.caption))) for h in self.shown]
        tables = zip(captions, self.shown.values(), strict=True)
        return "\n".join(to_latex(t, c, f"{label}-{i}" if i else label) for i, (c, t) in enumerate(tables))

    def html(self) -> str:
        (one, *_), several = self.shown.values(), len(self.shown) > 1
        if not several:
            return page.table_section(self.name, self.heading, self.caption, one, self.entries)
        parts = [page.table_section("", heading, "", shown) for heading, shown in self.shown.items()]
        return page.section(self.name, self.heading, self.caption, "".join(parts))

    def write(self, out: Path, said: Sequence[str]) -> Path:
        """name.csv, name.md (with the notes `said`) and name.tex; returns the Markdown file."""
        write_text(out / f"{self.name}.csv", self.csv)
        write_text(out / f"{self.name}.tex", self.latex())
        write_text(out / f"{self.name}.md", f"# {self.heading}\n\n{self.markdown()}{_noted(said)}")
        return out / f"{self.name}.md"


@dataclass(frozen=True)
class ReportPaths:
    """What was written, and what it says."""

    folder: Path
    page: Path
    tables: Mapping[str, Path]  # by name, the Markdown file; .csv and .tex lie beside it
    plots: Mapping[str, Path]  # by title, the PNG; .svg lies beside it
    main: pd.DataFrame  # the main table, for `format_table`
    findings: list[str]
    notes: list[str]


def write_report(
    runs_root: Path | str,
    out: Path | str,
    title: str,
    *,
    models: Collection[str] = (),
    benchmarks: Collection[str] = (),
    methods: Collection[str] = (),
    folders: Collection[Path] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    reference: Path | str | None = None,
) -> ReportPaths:
    """Writes the report of all runs under a folder. The same runs give the same files, to the byte.

    Args:
        runs_root: `results/runs`, or any folder laid out like it.
        out: folder of the report; tables and plots of an earlier report that this one does not have are removed.
        title: heading of the report.
        models, benchmarks, methods: names to keep; empty keeps all. The reference stays, whatever the methods.
        folders: the only runs to read; None reads all.
        defaults: settings by method name; the main table shows a method with these where it was run so.
        reference: folder of published figures (conf/reference); None leaves them out.

    Raises:
        ValueError: a filter names what no run has.
        StoreError: no folder of runs, an unreadable file of published figures, or the report cannot be written.
    """
    out = Path(out)
    published = read_published(reference) if reference else None
    runs = read_runs(runs_root, models=models, benchmarks=benchmarks, methods=methods, folders=folders)
    found = [entry for entry in entries(runs) if not methods or base(entry.method) in methods or is_reference(entry)]
    rows = main_entries(found, defaults)
    main, sweep, said, traced = frame(rows), sweep_rows(found), notes(runs, found), traces(rows)
    tables = _tables(rows, main, sweep, published)
    sentences = findings(rows, published)

    folder = out / "plots"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = {
            **plots.accuracy_against_speedup(main, folder),
            **plots.sweeps(sweep, folder),
            **plots.overhead(overhead_rows(rows), folder),
            **plots.phases(phase_rows(rows), folder),
            **pictures(traced, folder),
        }
        kept = {path.stem for path in drawn.values()}
        for stale in (path for path in folder.iterdir() if path.suffix in (".png", ".svg") and path.stem not in kept):
            stale.unlink()
        for name in TABLES_KNOWN - {table.name for table in tables}:
            for suffix in (".csv", ".md", ".tex"):
                (out / f"{name}{suffix}").unlink(missing_ok=True)
    written = {table.name: table.write(out, said if table is tables[0] else []) for table in tables}
    lead = _lead(runs)
    write_text(out / "README.md", _overview(title, lead, tables, sentences, drawn, said, out))
    sections = {
        "Main table": tables[0].html(),
        "Findings": page.list_section("findings", "Findings", FOLLOW, sentences),
    }
    if drawn:
        sections["Plots"] = page.plots_section(drawn, sorted({entry.model for entry in rows}, key=len, reverse=True))
    if traced:
        sections["Step by step"] = page.decoding_section(traced)
    sections |= {table.heading: table.html() for table in tables[1:]}
    sections |= studies.study_sections(out / "studies")
    if said:
        sections["Notes"] = page.list_section("notes", "Notes", "", said)
    write_text(out / "index.html", page.page(title, lead, sections, [*rows, *found], traced))
    return ReportPaths(out, out / "index.html", written, drawn, main, sentences, said)


TABLES_KNOWN = {"accuracy", "decision_overhead", "phases", "tau_k_grid", "published_claims", "published_tables"}
FOLLOW = "These sentences follow from the figures by rule."


def _tables(rows: Sequence[Entry], main: pd.DataFrame, sweep: pd.DataFrame, published: Published | None) -> list[Table]:
    """Every table that has rows; the main table always."""
    accuracy, overhead, phases = accuracy_rows(rows), overhead_rows(rows), phase_rows(rows)
    shares = [str(column) for column in overhead if str(column).endswith("_share")]
    made = [
        Table("accuracy", "Accuracy", ACCURACY, to_csv(accuracy), {"": readable(accuracy, ACCURACIES)}),
        Table("decision_overhead", "Decision overhead", OVERHEAD, to_csv(overhead), {"": readable(overhead, shares)}),
        Table("phases", "Where the time goes", PHASES, to_csv(phases), {"": readable(phases)}),
        Table("tau_k_grid", "Threshold and window of tokens", SWEEP, to_csv(sweep), grid(sweep, AXES)),
    ]
    if published:
        claims, beside = claim_rows(published, rows), table_rows(published, rows)
        made += [
            Table("published_claims", "The paper's claims", CLAIMS, to_csv(claims), {"": readable(claims)}),
            Table("published_tables", "A published table", TABLES, to_csv(beside), {"": readable(beside, BESIDE)}),
        ]
    first = Table("main_table", "Main table", MAIN, main_csv(main), {"": display(main)}, rows)
    return [first, *(table for table in made if any(len(shown) for shown in table.shown.values()))]


ACCURACIES = ("accuracy", "accuracy_se", "micro", "macro")
BESIDE = ("published_accuracy", "accuracy")


def _lead(runs: Sequence[Run]) -> str:
    """How many runs there are, and what they ran on."""
    done = [run for run in runs if run.state == DONE]
    scored, timed = sum(not run.is_speed for run in done), sum(run.is_speed for run in done)
    devices = sorted({str(run.manifest["device"]) for run in done if "device" in run.manifest})
    where = f" on {', '.join(devices)}" if devices else ""
    rest = f"; {len(runs) - len(done)} more not finished, failed or damaged" if len(done) < len(runs) else ""
    return f"Scored runs: {scored}; paired timings: {timed}{where}{rest}."


def _overview(
    title: str,
    lead: str,
    tables: Sequence[Table],
    sentences: Sequence[str],
    drawn: Mapping[str, Path],
    said: Sequence[str],
    out: Path,
) -> str:
    """README.md of the report's folder: what a hosting site shows of it."""
    parts = [f"# {title}\n", f"{lead} [index.html](index.html) is the same as a page that sorts and filters.\n"]
    for table in tables:
        parts.append(f"## {table.heading}\n\n{table.markdown()}")
        if table.name == "main_table":
            parts.append(f"## Findings\n\n{FOLLOW}\n\n" + "".join(f"- {line}\n" for line in sentences))
    parts.append("## Plots\n")
    parts += [f"![{heading}]({path.relative_to(out).as_posix()})\n" for heading, path in drawn.items()]
    studied = studies.read_studies(out / "studies")
    if studied:
        parts.append("## Studies\n")
    parts += [study.markdown(out) for study in studied]
    return "\n".join(parts) + _noted(said)


def _noted(said: Sequence[str]) -> str:
    return "\n## Notes\n\n" + "".join(f"- {line}\n" for line in said) if said else ""
