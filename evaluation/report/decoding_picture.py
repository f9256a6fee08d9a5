"""One sample's decoding as a picture: steps downwards, rows across; what is computed, cached, committed, refreshed."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from evaluation.provenance import ROOT
from evaluation.report.entries import Entry
from evaluation.report.plots import panels, place_legend, save
from evaluation.report.runs import Run
from evaluation.report.style import style, title

CACHED, COMPUTED, CANDIDATE, COMMITTED = range(4)  # what a row is in a step; a later one hides an earlier one


@dataclass(frozen=True)
class Trace:
    """One sample's steps. Rows count from the prompt's first token; a set of rows is a list of [first, last] spans."""

    entry: Entry
    sample: Mapping[str, Any]
    steps: list[dict[str, Any]]

    @property
    def prompt(self) -> int:
        """Rows of the prompt."""
        return int(self.sample["prompt_tokens"])

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self.prompt + len(self.sample["tokens"])

    def states(self) -> np.ndarray:
        """[steps, rows]: CACHED, COMPUTED, CANDIDATE (computed for its token, not committed) or COMMITTED."""
        picture = np.full((len(self.steps), self.rows), CACHED)
        for line, step in zip(picture, self.steps, strict=True):
            for spans, state in (("computed", COMPUTED), ("predicted", CANDIDATE)):
                for first, last in step[spans]:
                    line[first : last + 1] = state
            line[step["committed"]] = COMMITTED
        return picture


def spans(rows: Iterable[int]) -> list[list[int]]:
    """Ascending rows as [first, last] spans: 1, 2, 3, 7 -> [1, 3], [7, 7]."""
    found: list[list[int]] = []
    for row in rows:
        if found and row == found[-1][1] + 1:
            found[-1][1] = row
        else:
            found.append([row, row])
    return found


def traces(rows: Sequence[Entry]) -> list[Trace]:
    """The first traced sample of every scored row that was run with `trace=true`; one that cannot be read is left out
    with a warning.
    """
    return [trace for entry in rows if entry.scored and (trace := _trace(entry))]


def _trace(entry: Entry) -> Trace | None:
    run = entry.scored
    path = run.loaded.folder / "steps.parquet" if run else None
    if run is None or path is None or not path.is_file():
        return None
    try:
        return _read(entry, run, path)
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        warnings.warn(f"{path} cannot be read, its decoding is not shown: {' '.join(str(error).split())}", stacklevel=2)
        return None


def _read(entry: Entry, run: Run, path: Path) -> Trace:
    first = min(pyarrow.parquet.read_table(path, columns=["index"])["index"].to_pylist())
    records = pyarrow.parquet.read_table(path, filters=[("index", "==", first)]).to_pylist()
    sample = next(sample for sample in run.samples if sample["index"] == first)
    steps = [
        {
            "refresh": bool(record["refresh"]),
            "computed": spans(record["computed"]),
            "predicted": spans(record["predicted"]),
            "committed": list(record["committed"]),
            "tokens": list(record["tokens"]),
            "entropy": record["entropy"],
            "ms": 1000 * sum(value for key, value in record.items() if key.startswith("seconds_")),
        }
        for record in sorted(records, key=lambda record: record["step"])
    ]
    return Trace(entry, sample, steps)


def pictures(found: Sequence[Trace], folder: Path) -> dict[str, Path]:
    """One picture a model, on its first benchmark that has traces, a panel a method; the page walks through all."""
    plots = {}
    first: dict[str, str] = {}
    for trace in found:
        first.setdefault(*trace.entry.group)
    for model, benchmark in first.items():
        chosen = [trace for trace in found if trace.entry.group == (model, benchmark)]
        with panels(len(chosen), columns=3, size=(4.2, 3.4)) as (figure, axes):
            for ax, trace in zip(axes, chosen, strict=True):
                _draw(ax, trace)
            marks = [
                Patch(facecolor=SHADES[CACHED], edgecolor="#888888", label="cached"),
                Patch(facecolor=_tint("#555555", 0.45), label="computed"),
                Patch(facecolor="#555555", label="computed, a candidate"),
                Patch(facecolor=SHADES[COMMITTED], label="committed"),
                Line2D([], [], marker=">", linestyle="", color="black", label="refresh"),
                Line2D([], [], color="black", linewidth=0.8, linestyle=":", label="end of the prompt"),
            ]
            place_legend(figure, marks, [str(mark.get_label()) for mark in marks])
            figure.suptitle(f"{model}, {benchmark}: one sample, step by step")
            plots[f"Decoding, step by step: {model}, {benchmark}"] = save(
                figure, folder, f"decoding_{model}_{benchmark}"
            )
    return plots


SHADES = {CACHED: "#f4f4f4", COMMITTED: "#000000"}


def _tint(colour: str, share: float) -> tuple[float, float, float]:
    """A colour mixed with white."""
    red, green, blue = (1 - share * (1 - channel) for channel in to_rgb(colour))
    return red, green, blue


def _draw(ax: Axes, trace: Trace) -> None:
    colour = style(trace.entry.method).colour
    colour = "#666666" if colour == "#000000" else colour  # black is for committed rows
    shades = ListedColormap([to_rgb(SHADES[CACHED]), _tint(colour, 0.45), to_rgb(colour), to_rgb(SHADES[COMMITTED])])
    ax.imshow(trace.states(), cmap=shades, vmin=0, vmax=3, aspect="auto", interpolation="nearest")
    refreshes = [number for number, step in enumerate(trace.steps) if step["refresh"]]
    ax.plot(
        [-0.5] * len(refreshes), refreshes, ">", color="black", markersize=min(3, 90 / len(trace.steps)), clip_on=False
    )
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.axvline(trace.prompt - 0.5, color="black", linewidth=0.8, linestyle=":")
    ax.grid(False)
    heading = f"{title(trace.entry.method)}, {trace.entry.decoding}"
    ax.set(title=heading, xlabel="row (prompt, then canvas)", ylabel="step")


# -- for the page ----------------------------------------------------------------------------------------------------


def page_data(trace: Trace) -> dict[str, Any]:
    """What the page needs to draw a trace and to walk through it."""
    entry = trace.entry
    return {
        "title": f"{entry.model} · {entry.benchmark} · {title(entry.method)} · {entry.decoding}",
        "colour": style(entry.method).colour,
        "sample": trace.sample["id"],
        "prompt": trace.prompt,
        "rows": trace.rows,
        "text": trace.sample["text"],
        "pieces": pieces(entry, trace.sample["tokens"]),
        "steps": [
            {
                **step,
                "ms": round(step["ms"], 3),
                "entropy": None if step["entropy"] is None else round(step["entropy"], 4),
            }
            for step in trace.steps
        ],
    }


def pieces(entry: Entry, tokens: Sequence[int]) -> list[str]:
    """Canvas tokens as text, by the vocabulary in the checkpoint's folder; "#7" for a token that it does not name.

    Byte-level vocabularies write a space as Ġ and a line break as Ċ; only these two are put back.
    """
    path = str((entry.scored.config.get("model") or {}).get("path", "")) if entry.scored else ""
    names: dict[int, str] = {}
    for folder in (Path(path), ROOT / "entropycache" / "assets" / path):
        for name in ("vocab.json", "added_tokens.json", "tokenizer.json"):
            if path and (folder / name).is_file():
                names |= _vocabulary(json.loads((folder / name).read_text(encoding="utf-8")))
    return [names.get(token, f"#{token}").replace("Ġ", " ").replace("Ċ", "\n") for token in tokens]


def _vocabulary(record: Mapping[str, Any]) -> dict[int, str]:
    if "model" not in record:  # vocab.json, added_tokens.json
        return {int(token): text for text, token in record.items()}
    names = {int(token): text for text, token in record["model"]["vocab"].items()}
    return names | {int(token["id"]): token["content"] for token in record.get("added_tokens", [])}
