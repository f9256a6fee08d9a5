"""What does computing a row cost on this device, and where does skipping rows stop paying?

The time of one step against the number of rows it computes, at several lengths of the sequence, beside the analytic
FLOPs of the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from entropycache.flops import step_flops
from entropycache.models.transformer import Transformer
from entropycache.settings import real, several, whole
from evaluation.report.formats import percent
from evaluation.report.plots import legend_below, logarithmic, panels, save
from evaluation.report.style import SERIES
from evaluation.statistics import times
from evaluation.studies.result import Frames, StudyResult, Table
from evaluation.studies.trajectory import Subject

SAME = 1.1  # a step within this factor of the cheapest is called no faster
CAPTION = (
    "One forward pass over the given number of rows of a sequence whose other rows are cached, the logits of at most "
    "{read} rows read; median of {repeats} passes, taken in turn. Share of time and share of FLOPs: of the pass over "
    "every row. Skipping stops paying where computing fewer rows makes no step faster by a tenth."
)


@dataclass(frozen=True)
class Cost:
    """Settings: lengths of the sequences, shares of their rows to compute, rows read, and timings of each."""

    lengths: Sequence[int]
    shares: Sequence[float]
    read: int
    repeats: int
    seed: int = 0
    name: str = "cost"

    def __post_init__(self) -> None:
        several("study.lengths", self.lengths, partial(whole, least=2, of="rows"))
        several("study.shares", self.shares, lambda name, x: real(name, x, lambda x: 0 < x <= 1, "above 0, at most 1"))
        if 1 not in self.shares:
            raise ValueError(f"study.shares={list(self.shares)} must hold 1: every row")
        whole("study.read", self.read, 1, "rows")
        whole("study.repeats", self.repeats, 1)
        whole("study.seed", self.seed, 0)

    def measure(self, subject: Subject) -> Frames:
        """`steps`: median seconds and FLOPs of a step, by length and rows computed."""
        model = subject.answerer.model
        return {"steps": pd.concat([self.of_length(model, n) for n in self.lengths]).assign(model=subject.name)}

    def of_length(self, model: Transformer, length: int) -> pd.DataFrame:
        """The steps of one length; their timings take turns, so that a slow spell of the machine hits them alike."""
        spec, generator = model.spec, torch.Generator().manual_seed(self.seed)
        tokens = torch.randint(0, spec.vocab, (length,), generator=generator)
        counts = sorted({max(1 + spec.shift, round(share * length)) for share in self.shares})
        cache, rows = model.new_cache(length), torch.arange(length)
        read = {count: min(self.read, count - spec.shift) for count in counts}
        seconds: dict[int, list[float]] = {count: [] for count in counts}
        with torch.inference_mode():
            model.forward(tokens, rows, rows[-1:], cache)
            for repeat in range(self.repeats + 1):
                for count in counts:
                    work = partial(model.forward, tokens, rows[-count:], rows[-read[count] :], cache)
                    spent = timed(work, model)
                    if repeat:  # the first round warms up
                        seconds[count].append(spent)
        return pd.DataFrame(
            {
                "length": length,
                "rows": count,
                "seconds": float(np.median(seconds[count])),
                "flops": step_flops(spec, spec.layers * count, length, read[count]),
            }
            for count in counts
        )

    def report(self, measured: Frames, folder: Path) -> StudyResult:
        table = shares(measured["steps"])
        knees = knee_table(table)
        models = list(dict.fromkeys(table["model"]))
        return StudyResult(
            name=self.name,
            title="What does a row cost on this device?",
            caption=CAPTION.format(read=self.read, repeats=self.repeats),
            conclusion=[line for model in models for line in conclude(model, knees)],
            tables=[
                Table("cost_knee", "Where skipping rows stops paying", knees, ("knee_share", "fixed_share")),
                Table("cost", "A step's time by rows computed", table, ("time_share", "flops_share")),
            ],
            plots={f"Step time against rows: {model}": draw(model, table, knees, folder) for model in models},
        )


def timed(work: Callable[[], object], model: Transformer) -> float:
    """Seconds of some work on the model's device, until it is done there."""
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(model.device)
    began = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - began


def shares(steps: pd.DataFrame) -> pd.DataFrame:
    """Each step's time and FLOPs as shares of those of the pass over every row."""
    table = steps[["model", "length", "rows", "seconds", "flops"]].sort_values(["model", "length", "rows"])
    full = table.groupby(["model", "length"], sort=False)[["seconds", "flops"]].transform("last")
    return table.reset_index(drop=True).assign(
        time_share=(table["seconds"] / full["seconds"]).to_numpy(),
        flops_share=(table["flops"] / full["flops"]).to_numpy(),
        gflops_per_second=(table["flops"] / table["seconds"] / 1e9).to_numpy(),
    )


def knee_table(table: pd.DataFrame) -> pd.DataFrame:
    """For each length the rows below which a step gets no faster, its fixed cost, and how much a full pass takes.

    The knee is the largest number of rows whose step is within SAME of the fastest. The fixed cost is the fastest
    step's time, as a share of the full pass.
    """
    rows = []
    for (model, length), part in table.groupby(["model", "length"], sort=False):
        fastest, full = float(part["seconds"].min()), float(part["seconds"].iloc[-1])
        knee = int(part["rows"][part["seconds"] <= SAME * fastest].max())
        rows.append(
            {"model": model, "length": length, "knee_rows": knee, "knee_share": knee / float(part["rows"].max())}
            | {"fastest_ms": 1000 * fastest, "full_ms": 1000 * full, "fixed_share": fastest / full}
            | {"largest_gain": full / fastest, "largest_gain_by_flops": 1 / float(part["flops_share"].min())}
        )
    return pd.DataFrame(rows)


def conclude(model: str, knees: pd.DataFrame) -> list[str]:
    """Two sentences on one model."""
    own = knees[knees["model"] == model].to_dict("records")
    stops = "; ".join(f"{k['knee_rows']} of {k['length']} ({percent(k['knee_share'])})" for k in own)
    long = max(own, key=lambda knee: knee["length"])
    return [
        f"{model}: computing fewer rows stops making a step faster at about {stops} rows.",
        f"{model}: at {long['length']} rows the cheapest step takes {long['fastest_ms']:.1f} ms and a full pass "
        f"{long['full_ms']:.1f} ms, so that skipping rows gains at most {times(long['largest_gain'])}, where the FLOPs "
        f"alone would allow {times(long['largest_gain_by_flops'])}.",
    ]


def draw(model: str, table: pd.DataFrame, knees: pd.DataFrame, folder: Path) -> Path:
    """Time against rows, and both shares against rows, a line a length."""
    with panels(2) as (figure, axes):
        for number, (length, part) in enumerate(table[table["model"] == model].groupby("length")):
            of_all = part["rows"] / part["rows"].max()
            shade, marker = SERIES[number % len(SERIES)]
            axes[0].plot(part["rows"], 1000 * part["seconds"], color=shade, marker=marker, label=f"{length} rows")
            axes[1].plot(of_all, part["time_share"], color=shade, marker=marker)
            axes[1].plot(of_all, part["flops_share"], color=shade, linestyle=":")
            knee = knees[(knees["model"] == model) & (knees["length"] == length)].iloc[0]
            axes[0].axvline(knee["knee_rows"], color=shade, linewidth=0.8, linestyle="--")
        axes[0].set(title="time of a step (dashed: skipping stops paying)", xlabel="rows computed", ylabel="ms")
        axes[1].set(title="share of a full pass", xlabel="share of rows computed", ylabel="time (line), FLOPs (dotted)")
        for ax in axes:
            logarithmic(ax, "x")
            logarithmic(ax, "y")
        legend_below(figure, axes, columns=6)
        figure.suptitle(model)
        return save(figure, folder, f"cost_{model}")
