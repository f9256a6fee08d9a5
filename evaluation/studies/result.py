"""What a study leaves behind: tables (CSV and Markdown), plots, conclusions, and `study.json`, which names them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pandas as pd

from evaluation.files import as_json, make_folder, write_json, write_text, writing
from evaluation.report.formats import readable, to_csv, to_markdown

SUFFIXES = (".csv", ".md", ".png", ".svg", ".json")
Frames = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Table:
    """One table: its raw numbers, and which columns people read in per cent."""

    name: str
    heading: str
    frame: pd.DataFrame
    shares: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyResult:
    """A finished study. `conclusion` follows from the tables by rule; `data` is written as CSV and shown nowhere."""

    name: str
    title: str
    caption: str
    conclusion: Sequence[str]
    tables: Sequence[Table]
    plots: Mapping[str, Path]  # by heading, the PNG; .svg lies beside it
    data: Frames = field(default_factory=dict)


class Reporter(Protocol):
    """The half of a study that needs no model."""

    def report(self, measured: Frames, folder: Path) -> StudyResult:
        """Draw the plots into `folder`; everything else is in the result."""
        ...


def together(parts: Sequence[Frames]) -> Frames:
    """The frames of several models, one below the other."""
    return {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in parts[0]}


def folder_of(results: Path | str, profile: str, name: str) -> Path:
    """Where a study goes, made if need be, before anything is measured. Raises StoreError where that cannot be."""
    return make_folder(Path(results) / profile / "studies" / name)


def write_study(study: Reporter, measured: Frames, folder: Path, settings: Mapping[str, Any]) -> StudyResult:
    """Write a study's files into its folder, in place of those of an earlier one, which stay until all are made;
    returns what it says.

    Raises StoreError where they cannot be written.
    """
    with writing(folder), TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as made:
        result = study.report(measured, Path(made))
        _write(result, Path(made), settings)
        for stale in (path for path in folder.iterdir() if path.suffix in SUFFIXES):
            stale.unlink()
        for path in sorted(Path(made).iterdir()):
            path.replace(folder / path.name)
    return result


def _write(result: StudyResult, folder: Path, settings: Mapping[str, Any]) -> None:
    """The files of a result beside its plots; `study.json`, which names the others, is the last."""
    for table in result.tables:
        write_text(folder / f"{table.name}.csv", to_csv(table.frame))
        write_text(folder / f"{table.name}.md", f"# {table.heading}\n\n{_markdown(table)}")
    for name, frame in result.data.items():
        write_text(folder / f"{name}.csv", to_csv(frame))
    write_text(folder / "README.md", overview(result))
    record = {
        "name": result.name,
        "title": result.title,
        "caption": result.caption,
        "settings": as_json(settings),
        "conclusion": list(result.conclusion),
        "tables": [{"name": t.name, "heading": t.heading, "shares": list(t.shares)} for t in result.tables],
        "plots": {heading: path.name for heading, path in result.plots.items()},
    }
    write_json(folder / "study.json", record)


def overview(result: StudyResult) -> str:
    """README.md of a study's folder: what a hosting site shows of it."""
    parts = [f"# {result.title}\n", f"{result.caption}\n", "".join(f"- {line}\n" for line in result.conclusion)]
    parts += [f"## {table.heading}\n\n{_markdown(table)}" for table in result.tables]
    parts += [f"![{heading}]({path.name})\n" for heading, path in result.plots.items()]
    return "\n".join(parts)


def _markdown(table: Table) -> str:
    return to_markdown(readable(table.frame, table.shares))
