"""The plots of a report, as PNG and SVG. A method looks the same in all of them; every interval that is known is drawn.

The files are the same to the byte for the same runs and the same matplotlib.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from evaluation.report.formats import known
from evaluation.report.style import SERIES, style, title

LOOK: Any = {
    "svg.hashsalt": "entropycache",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
PANEL = (5.2, 3.5)  # inches


@contextmanager
def panels(count: int, columns: int = 2, size: tuple[float, float] = PANEL) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `count` panels, in rows of at most `columns`."""
    with matplotlib.rc_context(LOOK):
        columns = min(columns, count)
        rows = -(-count // columns)
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
        for spare in axes[count:]:
            spare.remove()
        yield figure, axes[:count]


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Writes name.png and name.svg; returns the path of the PNG."""
    with matplotlib.rc_context(LOOK):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
        figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
    return folder / f"{name}.png"


def logarithmic(axis_owner: Axes, axis: str) -> None:
    """A logarithmic axis with plain numbers on it."""
    getattr(axis_owner, f"set_{axis}scale")("log")
    chosen = getattr(axis_owner, f"{axis}axis")
    chosen.set_major_locator(LogLocator(subs=(1, 2, 5)))
    chosen.set_major_formatter(ScalarFormatter())
    chosen.set_minor_formatter(NullFormatter())


def interval(value: float, low: float | None, high: float | None) -> list[list[float]] | None:
    """Lengths of an error bar below and above a value, as matplotlib takes them; None if the interval is unknown."""
    if not (known(low) and known(high)):
        return None
    return [[max(0.0, value - float(low or 0))], [max(0.0, float(high or 0) - value)]]


# -- accuracy against speedup ----------------------------------------------------------------------------------------


def accuracy_against_speedup(table: pd.DataFrame, folder: Path) -> dict[str, Path]:
    """One plot a model, one panel a benchmark: accuracy ± s.e. against speedup with its 95 % interval.

    Open markers commit one token a step, filled ones more. Rows without both figures are left out.
    """
    shown = table.dropna(subset=["accuracy", "speedup"])
    return {
        f"Accuracy against speedup: {model}": _accuracy_against_speedup(str(model), part, folder)
        for model, part in shown.groupby("model", sort=False)
    }


def _accuracy_against_speedup(model: str, table: pd.DataFrame, folder: Path) -> Path:
    groups = list(table.groupby("benchmark", sort=False))
    with panels(len(groups)) as (figure, axes):
        for ax, (benchmark, part) in zip(axes, groups, strict=True):
            for _, row in part.iterrows():
                look, filled = style(row["method"]), row["decoding"] != "one_token"
                ax.errorbar(
                    row["speedup"],
                    100 * row["accuracy"],
                    xerr=interval(row["speedup"], row["speedup_low"], row["speedup_high"]),
                    yerr=100 * row["accuracy_se"] if known(row["accuracy_se"]) else None,
                    fmt=look.marker,
                    color=look.colour,
                    markerfacecolor=look.colour if filled else "white",
                    markersize=8,
                    capsize=3,
                    elinewidth=1,
                    label=f"{title(row['method'])}, {row['decoding']}",
                )
            logarithmic(ax, "x")
            ax.axvline(1, color="#888888", linewidth=0.8, linestyle=":")
            ax.set(
                title=benchmark,
                xlabel="speedup over one-token full recompute (×, 95 % interval)",
                ylabel="accuracy (%, ± s.e.)",
            )
            ax.set_ylim(top=min(101, ax.get_ylim()[1]))  # room for a marker at 100 %, no more
            ticks_of_ratios(ax, part[["speedup", "speedup_low", "speedup_high"]])
        legend_below(figure, axes)
        figure.suptitle(model)
        return save(figure, folder, f"accuracy_speedup_{model}")


def ticks_of_ratios(ax: Axes, values: pd.DataFrame) -> None:
    """Ticks of a logarithmic axis of ratios at round numbers, and a margin around the values."""
    low, high = min(0.9, 0.85 * values.min().min()), 1.15 * max(1.2, values.max().max())
    steps = [m * 10.0**e for e in range(-3, 4) for m in (1, 2, 5)]
    fine = [m * 10.0**e for e in range(-3, 4) for m in (1, 1.5, 2, 3, 4, 5, 7)]
    inside = [tick for tick in steps if low <= tick <= high]
    ax.set_xlim(low, high)
    ax.set_xticks(inside if len(inside) > 3 else [tick for tick in fine if low <= tick <= high])


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 6) -> None:
    """One legend for all panels, each label once, in at most so many columns as the figure is wide enough for."""
    labels = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if labels:
        place_legend(figure, list(labels.values()), list(labels), columns)


def place_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int = 6) -> None:
    """A legend below everything; a column is as wide as the longest label and its mark."""
    inches = 0.55 + 0.062 * max(map(len, labels))
    fitting = max(1, int(figure.get_figwidth() / inches))
    columns = min(columns, fitting, len(labels))
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=columns, fontsize=8)


# -- sweeps ----------------------------------------------------------------------------------------------------------


def sweeps(table: pd.DataFrame, folder: Path) -> dict[str, Path]:
    """For each sweep accuracy, speed and refresh rate against one axis, with lines for the other, both ways round."""
    plots = {}
    for (model, benchmark, decoding), part in table.groupby(["model", "benchmark", "decoding"], sort=False):
        done = part.dropna(subset=["tokens_per_second"])
        for axis, lines in (("tau", "k"), ("k", "tau")):
            if done[axis].nunique() > 1:
                name = f"sweep_{axis}_{model}_{benchmark}_{decoding}"
                where = f"{model}, {benchmark}, {decoding}"
                plots[f"EntropyCache against {axis}: {where}"] = _sweep(where, done, axis, lines, folder, name)
    return plots


def _sweep(where: str, table: pd.DataFrame, axis: str, lines: str, folder: Path, name: str) -> Path:
    paired = table["speedup"].notna().all()
    speed = "speedup" if paired else "tokens_per_second"
    values = sorted(table[axis].unique())
    with panels(3, columns=3, size=(3.5, 3.1)) as (figure, axes):
        for number, (line, part) in enumerate(table.groupby(lines)):
            colour, marker = SERIES[number % len(SERIES)]
            part = part.sort_values(axis)
            aside = 0.05 * (number - (table[lines].nunique() - 1) / 2)  # intervals stand beside each other
            x = [values.index(value) + aside for value in part[axis]]
            look: Any = {"color": colour, "marker": marker, "capsize": 2, "linewidth": 1.3, "markersize": 5}
            label = f"{lines} = {line:g}"
            axes[0].errorbar(x, 100 * part["accuracy"], yerr=100 * part["accuracy_se"], label=label, **look)
            error = None
            if paired:
                error = [part["speedup"] - part["speedup_low"], part["speedup_high"] - part["speedup"]]
            axes[1].errorbar(x, part[speed], yerr=error, **look)
            axes[2].errorbar(x, 100 * part["refresh_rate"], **look)
        titles = ("accuracy (%)", "speedup (×)" if paired else "tokens/s, not paired", "steps that refresh (%)")
        for ax, heading in zip(axes, titles, strict=True):
            ax.set_xticks(range(len(values)), [f"{value:g}" for value in values])
            ax.set(xlabel=f"{axis} (nats)" if axis == "tau" else f"{axis} (tokens)", title=heading)
            ax.margins(x=0.08)
        legend_below(figure, axes)
        figure.suptitle(f"EntropyCache, {where}")
        return save(figure, folder, name)


# -- time ------------------------------------------------------------------------------------------------------------

DECIDING = ("plan", "observer", "entropy", "observe", "unfused_attention")
HATCHES = dict(zip(DECIDING, ("", "////", "\\\\\\\\", "xxxx", "----"), strict=True))  # lines: dots make an SVG large
SHADES = {"candidates": "#f0f0f0", "forward": "#c8c8c8", "commit": "#8c8c8c"}  # what every method spends


def overhead(table: pd.DataFrame, folder: Path) -> dict[str, Path]:
    """One plot a model, one panel a benchmark: share of generation time spent deciding, a bar a row, part by part."""
    parts = [column for column in table.columns if column.endswith("_share") and column != "decision_share"]
    bars = table.assign(**{part.removesuffix("_share"): 100 * table[part] for part in parts})
    names = [part.removesuffix("_share") for part in parts]
    xlabel = "share of generation time spent deciding what to compute (%)"
    return _bars(bars, names, "{:.2f} %", xlabel, "Decision overhead", "decision_overhead", folder)


def phases(table: pd.DataFrame, folder: Path) -> dict[str, Path]:
    """One plot a model, one panel a benchmark: where the milliseconds of a prompt go, a bar a row.

    Grey: what every method does. In the method's colour: what it does to decide what to compute. One token a step is
    left to the table: beside its bar the others would be too short to be read.
    """
    shown = table[table["decoding"] != "one_token"]
    table = table if shown.empty else shown
    names = sorted(table.columns[4:], key=lambda name: name in DECIDING)
    return _bars(table, names, "{:.0f} ms", "generation time of a prompt (ms)", "Where the time goes", "phases", folder)


def _bars(
    table: pd.DataFrame, parts: Sequence[str], unit: str, xlabel: str, heading: str, name: str, folder: Path
) -> dict[str, Path]:
    plots = {}
    parts = [part for part in parts if (table[part] > 0).any()]
    handles = [Patch(facecolor=SHADES.get(part, "white"), hatch=HATCHES.get(part), edgecolor="black") for part in parts]
    for model, of_model in table.groupby("model", sort=False):
        groups = list(of_model.groupby("benchmark", sort=False))
        height = 0.9 + 0.3 * max(len(part) for _, part in groups)
        with panels(len(groups), size=(6.2, height)) as (figure, axes):
            for ax, (benchmark, rows) in zip(axes, groups, strict=True):
                left = pd.Series(0.0, index=range(len(rows)))
                for part in parts:
                    widths = rows[part].reset_index(drop=True)
                    colours = [SHADES.get(part, style(method).colour) for method in rows["method"]]
                    hatch = HATCHES.get(part)
                    ax.barh(left.index, widths, 0.7, left, color=colours, hatch=hatch, edgecolor="white", linewidth=0.5)
                    left += widths
                for position, end in left.items():
                    ax.text(end, float(str(position)), " " + unit.format(end), va="center", fontsize=8)
                ticks = [f"{title(row['method'])}, {row['decoding']}" for _, row in rows.iterrows()]
                ax.set_yticks(range(len(rows)), ticks, fontsize=8)
                ax.set(title=benchmark, xlabel=xlabel, xlim=(0, 1.2 * max(left.max(), 1e-9)))
                ax.invert_yaxis()
                ax.grid(axis="y", visible=False)
            names = [part.replace("_", " ") for part in parts]
            if parts:
                place_legend(figure, handles, names, columns=8)
            figure.suptitle(f"{heading}, {model}")
            plots[f"{heading}: {model}"] = save(figure, folder, f"{name}_{model}")
    return plots
