"""One table, four forms: CSV for programs, Markdown and LaTeX (booktabs) for people, plain text for the terminal."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pandas as pd

from evaluation.report.runs import DONE
from evaluation.report.tables import MAIN_COLUMNS, TIMED_ONLY
from evaluation.statistics import times

NOTHING = "–"
WIDTH = 120  # of a terminal


def known(value: Any) -> bool:
    return value is not None and not pd.isna(value)


def percent(value: Any) -> str:
    """A share as a percentage of three significant digits at most, two decimals at most: 0.0052 -> "0.52 %"."""
    if not known(value):
        return NOTHING
    shown = 100 * float(value)
    return f"{shown:.2f} %" if abs(shown) < 10 else f"{shown:.1f} %"


def figure(value: Any) -> str:
    """A number with four significant digits at most, no zeros at its end: 1234.5 -> "1235", 0.5 -> "0.5"."""
    if not known(value):
        return NOTHING
    if isinstance(value, str):
        return value
    if not math.isfinite(value) or 0 < abs(value) < 1e-4:
        return f"{value:.2g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def accuracy_cell(row: pd.Series) -> str:
    """Accuracy and its standard error in per cent."""
    if not known(row["accuracy"]):
        return NOTHING
    error = f" ± {100 * row['accuracy_se']:.1f}" if known(row["accuracy_se"]) else ""
    return f"{100 * row['accuracy']:.1f}{error}"


def speedup_cell(row: pd.Series) -> str:
    """Speedup and its interval."""
    if not known(row["speedup"]):
        return NOTHING
    interval = f" [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]" if known(row["speedup_low"]) else ""
    return times(row["speedup"]) + interval


def ratio_cell(column: str) -> Callable[[pd.Series], str]:
    return lambda row: times(row[column]) if known(row[column]) else NOTHING


def samples_cell(row: pd.Series) -> str:
    """The number of samples; of a row that is not finished what it is instead, starred."""
    if row["state"] == DONE:
        return str(row["n"])
    return NOTHING if row["state"] == TIMED_ONLY else f"{row['state']} *"


def percent_cell(column: str) -> Callable[[pd.Series], str]:
    return lambda row: percent(row[column])


def figure_cell(column: str) -> Callable[[pd.Series], str]:
    return lambda row: figure(row[column])


# Heading, what stands under it, and whether a narrow terminal can do without (the first to go: 1).
MAIN_CELLS: list[tuple[str, Callable[[pd.Series], str], int]] = [
    ("method", lambda row: row["method"], 0),
    ("decoding", lambda row: row["decoding"], 0),
    ("n", samples_cell, 0),
    ("accuracy %", accuracy_cell, 0),
    ("tokens/s", lambda row: f"{row['tokens_per_second']:.1f}" if known(row["tokens_per_second"]) else NOTHING, 2),
    ("speedup", speedup_cell, 0),
    ("caching", ratio_cell("speedup_from_caching"), 0),
    ("parallel", ratio_cell("speedup_from_parallel"), 0),
    ("rows", percent_cell("recompute_ratio"), 0),
    ("refresh", percent_cell("refresh_rate"), 0),
    ("tok/pass", lambda row: f"{row['tokens_per_forward']:.2f}" if known(row["tokens_per_forward"]) else NOTHING, 1),
    ("decide", percent_cell("decision_share"), 0),
]
HEADINGS = {
    "rows": "rows computed",
    "caching": "by caching",
    "parallel": "by parallel decoding",
    "refresh": "refreshes",
    "tok/pass": "tokens/pass",
    "decide": "deciding",
}


def display(table: pd.DataFrame) -> pd.DataFrame:
    """The main table as people read it: a column of text for each of MAIN_CELLS, under model and benchmark."""
    place = {name: table[name].tolist() for name in ("model", "benchmark")}
    cells = {HEADINGS.get(name, name): [cell(row) for _, row in table.iterrows()] for name, cell, _ in MAIN_CELLS}
    return pd.DataFrame(place | cells, dtype=object)


def readable(table: pd.DataFrame, shares: Collection[str] = ()) -> pd.DataFrame:
    """Any other table as people read it: `shares` in per cent, other numbers rounded, names without underscores.

    A column of which nothing is known is left out.
    """
    cells = {
        column: [percent(value) if column in shares else figure(value) for value in table[column]]
        for column in table
        if table[column].notna().any()
    }
    return pd.DataFrame(cells, dtype=object).rename(columns=lambda column: str(column).replace("_", " "))


def grid(table: pd.DataFrame, axes: Sequence[str]) -> dict[str, pd.DataFrame]:
    """A sweep's rows as a matrix for each model, benchmark and decoding: accuracy in per cent, and speedup below it."""
    found = {}
    for (model, benchmark, decoding), part in table.groupby(["model", "benchmark", "decoding"], sort=False):
        cells = part.assign(
            cell=[
                f"{accuracy_cell(row)} · {times(row['speedup']) if known(row['speedup']) else NOTHING}"
                if row["state"] in (DONE, TIMED_ONLY)
                else f"{row['state']} *"
                for _, row in part.iterrows()
            ]
        ).pivot(index=axes[0], columns=axes[1], values="cell")
        cells.columns = [f"{axes[1]} = {figure(value)}" for value in cells.columns]
        cells.insert(0, axes[0], [figure(value) for value in cells.index])
        found[f"{model}, {benchmark}, {decoding}"] = cells.fillna(NOTHING).reset_index(drop=True)
    return found


def format_table(table: pd.DataFrame, width: int = WIDTH) -> str:
    """The main table for a terminal: a block for each model and benchmark, no line longer than `width` if it can be.

    Columns are dropped only where the lines would not fit: first tokens a forward pass, then tokens a second.
    """
    if table.empty:
        return "no runs"
    blocks = []
    for (model, benchmark), part in table.groupby(["model", "benchmark"], sort=False):
        for dropped, gap in ((0, 2), (0, 1), (1, 1), (2, 1)):
            cells = [(name, cell) for name, cell, spare in MAIN_CELLS if not 0 < spare <= dropped]
            rows = [[cell(row) for _, cell in cells] for _, row in part.iterrows()]
            lines = _aligned([[name for name, _ in cells], *rows], " " * gap)
            if max(map(len, lines)) <= width:
                break
        blocks.append("\n".join([f"{model} · {benchmark}", *lines]))
    return "\n\n".join(blocks)


def _aligned(rows: Sequence[Sequence[str]], gap: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = [
        gap.join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return [line.rstrip() for line in [text[0], "-" * len(text[0]), *text[1:]]]


def to_csv(table: pd.DataFrame) -> str:
    """Numbers in full (six significant digits), nothing where nothing is known, "\\n" at every line's end."""
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def main_csv(table: pd.DataFrame) -> str:
    """main_table.csv: the finished rows, MAIN_COLUMNS only, so that no unfinished figure is ever read as a result."""
    return to_csv(table[table["state"].isin([DONE, TIMED_ONLY])][MAIN_COLUMNS])


def to_markdown(table: pd.DataFrame) -> str:
    """A pipe table; numbers to the right."""
    rows = [[_escape(figure(value)) for value in row] for row in table.itertuples(index=False)]
    numeric = [is_numeric([row[i] for row in rows]) for i in range(len(table.columns))]
    lines = [" | ".join(map(str, table.columns)), " | ".join("---:" if right else "---" for right in numeric)]
    return "".join(f"| {line} |\n" for line in [*lines, *(" | ".join(row) for row in rows)])


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers: some, and beside them nothing but gaps and starred words."""
    numbers = [cell[:1].isdigit() or (cell[:1] == "-" and len(cell) > 1) for cell in cells]
    return any(numbers) and all(n or c == NOTHING or c.endswith("*") for n, c in zip(numbers, cells, strict=True))


LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "–": "--"}
LATEX |= {"τ": r"$\tau$", "·": r"$\cdot$", "≤": r"$\le$", "†": r"$\dagger$"}


def latex(text: str) -> str:
    """Text with what LaTeX takes for commands written out."""
    return "".join(LATEX.get(character, character) for character in text)


def to_latex(table: pd.DataFrame, caption: str, label: str) -> str:
    """A `table` environment for booktabs."""
    rows = [[latex(figure(value)) for value in row] for row in table.itertuples(index=False)]
    numeric = [is_numeric([figure(value) for value in table[column]]) for column in table.columns]
    body = "".join("    " + " & ".join(row) + r" \\" + "\n" for row in rows)
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n  \\centering\n"
        f"  \\caption{{{latex(caption)}}}\n  \\label{{{label}}}\n"
        f"  \\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}\n    \\toprule\n"
        f"    {' & '.join(latex(str(column)) for column in table.columns)} \\\\\n    \\midrule\n"
        f"{body}    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
    )
