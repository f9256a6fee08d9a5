"""The studies' part of a report: what `evaluation.studies` left behind, read back from its files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evaluation.files import StoreError, read_json
from evaluation.report import page
from evaluation.report.formats import readable, to_markdown

ORDER = ("drift", "volatility", "overhead", "cost", "calibrate")


@dataclass(frozen=True)
class Study:
    """One study as it was found."""

    name: str
    title: str
    caption: str
    conclusion: list[str]
    tables: Mapping[str, pd.DataFrame]  # by heading, as people read them
    plots: Mapping[str, Path]

    def html(self) -> str:
        """A section of the page: conclusions, tables, plots."""
        tables = [page.table_section("", heading, "", shown) for heading, shown in self.tables.items()]
        said = page.list_section("", "Conclusions", "", self.conclusion)
        body = "".join([said, page.figures(self.plots, []), *tables])
        return page.section(f"study_{self.name}", self.title, self.caption, body)

    def markdown(self, out: Path) -> str:
        """The same for the report's README; `out` is the folder that it lies in."""
        lines = "".join(f"- {line}\n" for line in self.conclusion)
        parts = [f"### {self.title}\n", f"{self.caption}\n", lines]
        parts += [f"#### {heading}\n\n{to_markdown(shown)}" for heading, shown in self.tables.items()]
        parts += [f"![{heading}]({path.relative_to(out).as_posix()})\n" for heading, path in self.plots.items()]
        return "\n".join(parts)


def read_studies(folder: Path) -> list[Study]:
    """The studies under `<report>/studies`, in their order; none where the folder is missing. One that cannot be read
    is left out with a warning.
    """
    found = {path.parent.name: path for path in sorted(folder.glob("*/study.json"))}
    names = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return [study for name in names if (study := _readable(found[name]))]


def _readable(path: Path) -> Study | None:
    try:
        return _read(path)
    except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{path.parent} is not shown, make the study again: {' '.join(str(error).split())}", stacklevel=2)
        return None


def _read(path: Path) -> Study:
    record, folder = read_json(path), path.parent
    return Study(
        record["name"],
        record["title"],
        record["caption"],
        record["conclusion"],
        {
            table["heading"]: readable(pd.read_csv(folder / f"{table['name']}.csv"), table["shares"])
            for table in record["tables"]
        },
        {heading: folder / name for heading, name in record["plots"].items()},
    )


def study_sections(folder: Path) -> dict[str, str]:
    """The studies' sections, by the name that the page's navigation shows."""
    return {f"Study: {study.name}": study.html() for study in read_studies(folder)}
