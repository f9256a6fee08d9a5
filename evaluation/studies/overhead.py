"""What does deciding cost, and with what does it grow? (arXiv 2603.18489's claim: not with context length nor depth.)

Every method decodes on random-weights models of given shape, one axis varied at a time; its decision time a step is
held against the formula of docs/methods.md, both as slopes on logarithmic axes.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from entropycache import CachePolicy, Decoding, Generation, ModelSpec, generate
from entropycache.models.transformer import Transformer
from entropycache.recorder import DECISION_PHASES
from entropycache.settings import real, several, whole
from evaluation.report.formats import figure
from evaluation.report.plots import legend_below, logarithmic, panels, save
from evaluation.report.style import base, style, title
from evaluation.speed import unfused_seconds
from evaluation.studies.result import Frames, StudyResult, Table

AXES = {"rows": "rows (prompt + canvas)", "layers": "layers", "vocab": "vocabulary", "hidden": "hidden size"}
LEAST = {"vocab": 3}  # a token, the end and the mask
FLAT = 0.10  # a change over an axis by less than this is called none
LINEAR = 0.95  # a time that grows, and whose correlation with its formula is above this, is called to grow as it
CAPTION = (
    "Random weights; one axis varied, the others at {base}. {gen} tokens in {steps} steps; settings that make every "
    "step after the first a partial one. Decision time: what a partial step spends only to decide what to compute, "
    "median over steps, of each the lower quartile of generations taken in turn; unfused: what the slower attention "
    "path of methods that read attention costs beyond that, a step of any kind. Slope: of time over the axis, both "
    "logarithmic (0: flat, 1: in proportion). Formula: the operations that docs/methods.md counts, with the rows that "
    "were computed: entropycache "
    "c·V, d2cache L·(h + 1)·q·T + G², elastic_cache L·(h·q·T + w·T)."
)


@dataclass(frozen=True)
class Overhead:
    """Settings: the values of each axis (the others stay at `base`), the methods (overrides to run.yaml), tokens and
    steps of a generation, and how many generations of each shape at least, and for how many seconds a method.
    """

    base: Mapping[str, int]
    axes: Mapping[str, Sequence[int]]
    head_dim: int
    methods: Sequence[str]
    gen_length: int
    steps: int
    repeats: int
    seconds: float
    seed: int = 0
    name: str = "overhead"

    def __post_init__(self) -> None:
        for where, names in (("base", self.base), ("axes", self.axes)):
            if set(names) != set(AXES):
                raise ValueError(f"study.{where} must give {', '.join(AXES)}, not {', '.join(names)}")
        for axis, values in self.axes.items():
            least = LEAST.get(axis, 1)
            whole(f"study.base.{axis}", self.base[axis], least)
            if len(set(several(f"study.axes.{axis}", values, partial(whole, least=least)))) < 2:
                raise ValueError(f"study.axes.{axis}={list(values)} must hold two different values at least")
        for name, least in (("head_dim", 2), ("gen_length", 2), ("steps", 2), ("repeats", 2), ("seed", 0)):
            whole(f"study.{name}", getattr(self, name), least)
        real("study.seconds", self.seconds, lambda x: 0 <= x < math.inf, "a time of 0 or more")
        labels = several("study.methods", self.methods, row_label)
        for label in (label for place, label in enumerate(labels) if label in labels[:place]):
            raise ValueError(f"study.methods: {label} stands there twice; one setting of a method would do")
        if "entropycache" not in labels:
            raise ValueError(f"study.methods={labels} must have entropycache among them: the study is of its claim")
        for hidden in (self.base["hidden"], *self.axes["hidden"]):
            if hidden % self.head_dim:
                raise ValueError(f"hidden size {hidden} is not a multiple of study.head_dim={self.head_dim}")
        for rows in (self.base["rows"], *self.axes["rows"]):
            if rows <= self.gen_length:
                raise ValueError(f"{rows} rows leave no prompt before a canvas of {self.gen_length}")

    @property
    def points(self) -> list[dict[str, int]]:
        """The shapes, each once: the base, and every axis's values."""
        found = [dict(self.base)]
        for axis, values in self.axes.items():
            found += [{**self.base, axis: value} for value in values]
        return [point for place, point in enumerate(found) if point not in found[:place]]

    def measure(
        self,
        policies: Mapping[str, CachePolicy],
        device: str = "cpu",
        progress: Callable[[int], Any] = lambda done: None,
    ) -> Frames:
        """`points`: what deciding costs by shape and method, and the formula's operations; `progress` is told how many
        methods were measured since it was last told.

        On the CPU each method has a process of its own and one thread: where its temporaries come to lie, and so
        whether they are in the processor's cache, depends on what was freed before, [T, T] matrices of other methods
        among it; and threads that wait for each other take longer than the operations of a decision do.
        """
        parts = []
        for label, policy in policies.items():
            if torch.device(device).type == "cpu":
                with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
                    try:
                        parts.append(pool.submit(self.of_method, label, policy, device).result())
                    except BrokenProcessPool as error:
                        raise RuntimeError(
                            f"{label}: its process was ended from outside, for want of memory perhaps; smaller "
                            "study.axes.rows and study.axes.vocab would need less"
                        ) from error
            else:
                parts.append(self.of_method(label, policy, device))
            progress(1)
        return {"points": pd.concat(parts, ignore_index=True)}

    def of_method(self, label: str, policy: CachePolicy, device: str) -> pd.DataFrame:
        """The points of one method. Its shapes take turns, so that a slow spell of the machine hits them alike; each
        turn makes its model anew, since where weights come to lie in memory decides some percent of the time.
        """
        decoding = Decoding(self.gen_length, block_length=self.gen_length, steps=self.steps)
        points, method = self.points, method_label(label)
        steps: list[list[list[float]]] = [[] for _ in points]
        shares: list[list[dict[str, float]]] = [[] for _ in points]
        until = time.monotonic() + self.seconds
        for repeat in itertools.count():
            if repeat > self.repeats and time.monotonic() > until:
                break
            if (parent := parent_process()) and not parent.is_alive():
                os._exit(1)  # the study was killed; the pool's own loop would wait for its next job for ever
            # every other one is traced, for the time of single steps; the others tell the share of the whole
            traced = repeat % 2 == 0
            for place, point in enumerate(points):
                model = self.random_model(point, device)
                generation = generate(model, self.prompt(point), policy, decoding, trace=traced)
                if not repeat and not partial_steps(generation) and base(method) != "full_recompute":
                    raise ValueError(
                        f"study.methods: {label} made no partial step, and only their decisions are timed; settings "
                        f"of {method} that do not refresh at every step would do (entropycache: method.tau=inf)"
                    )
                if repeat and traced:
                    steps[place].append(partial_steps(generation))
                elif repeat:
                    shares[place].append(costs(model, generation))
        rows: list[dict[str, Any]] = []
        for point, timed, seen in zip(points, steps, shares, strict=True):
            middle = pd.DataFrame(seen).median().to_dict()
            # the same steps in every generation; of each the lower quartile: below the machine's slow spells, above the
            # rare generation whose temporaries all lay in the processor's cache
            undisturbed = [np.quantile(same, 0.25) for same in zip(*timed, strict=True)]
            decision = float(np.median(undisturbed)) if undisturbed else math.nan
            operations = self.formula(method, point, middle["computed"])
            found: dict[str, Any] = {"method": method, "decision": decision, "operations": operations}
            rows.append(found | point | {str(name): value for name, value in middle.items()})
        return pd.DataFrame(rows)

    def random_model(self, point: Mapping[str, int], device: str) -> Transformer:
        """A LLaDA of a given shape with random weights."""
        heads = point["hidden"] // self.head_dim
        spec = ModelSpec(
            family="llada",
            layers=point["layers"],
            hidden=point["hidden"],
            heads=heads,
            kv_heads=heads,
            intermediate=3 * point["hidden"],
            vocab=point["vocab"],
            rope_theta=1e4,
            norm_eps=1e-5,
            qkv_bias=False,
            tied=False,
            max_positions=point["rows"],
            mask_id=point["vocab"] - 1,
            eos_id=point["vocab"] - 2,
            stop_ids=(point["vocab"] - 2,),
            bos_id=None,
            shift=0,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Transformer(spec).to(device).requires_grad_(False).eval()

    def prompt(self, point: Mapping[str, int]) -> list[int]:
        """Random tokens before the canvas."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(0, point["vocab"] - 2, (point["rows"] - self.gen_length,), generator=generator).tolist()

    def formula(self, method: str, point: Mapping[str, int], computed: float) -> float:
        """Operations that deciding takes in a partial step that computes so many rows; constants are left out."""
        layers, rows, heads = point["layers"], point["rows"], point["hidden"] // self.head_dim
        committed, window = self.gen_length / self.steps, self.gen_length / 2
        return {
            "entropycache": committed * point["vocab"],
            "d2cache": layers * (heads + 1) * computed * rows + self.gen_length**2,
            "elastic_cache": layers * (heads * computed * rows + window * rows),
        }.get(base(method), 1.0)

    def report(self, measured: Frames, folder: Path) -> StudyResult:
        points = measured["points"]
        slopes = pd.concat([self.slope_table(axis, points) for axis in AXES], ignore_index=True)
        return StudyResult(
            name=self.name,
            title="Does the overhead stay flat?",
            caption=CAPTION.format(
                base=", ".join(f"{value:,} {AXES[axis]}" for axis, value in self.base.items()),
                gen=self.gen_length,
                steps=self.steps,
            ),
            conclusion=conclude(slopes),
            tables=[
                Table("overhead", "What deciding grows with", slopes, ("change",)),
                Table("overhead_points", "Decision time by shape", points.drop(columns="operations"), ("share",)),
            ],
            plots={"Decision time against the model's and the sequence's size": draw(self, points, folder)},
        )

    def along(self, axis: str, points: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
        """Each method's points along one axis, in its order."""
        others = [other for other in AXES if other != axis]
        on = points[(points[others] == pd.Series({other: self.base[other] for other in others})).all(axis=1)]
        for method, part in on[on[axis].isin(self.axes[axis])].groupby("method", sort=False):
            yield str(method), part.sort_values(axis)

    def slope_table(self, axis: str, points: pd.DataFrame) -> pd.DataFrame:
        """Decision time at both ends of an axis, its change, its slope and the formula's."""
        rows = []
        for method, part in self.along(axis, points):
            first, last = part.iloc[0], part.iloc[-1]
            if base(method) == "full_recompute":
                continue
            rows.append(
                {"method": method, "axis": axis, "from": first[axis], "to": last[axis]}
                | {"first_us": 1e6 * first["decision"], "last_us": 1e6 * last["decision"]}
                | {"change": last["decision"] / first["decision"] - 1}
                | {"slope": slope(part[axis], part["decision"]), "formula": slope(part[axis], part["operations"])}
                | {"correlation": correlation(part["operations"], part["decision"])}
            )
        return pd.DataFrame(rows)


def row_label(name: str, overrides: object) -> str:
    """The label of a row of `methods`. Raises ValueError for what does not begin with a method."""
    if not isinstance(overrides, str) or not re.match(r"method=\w+( |$)", overrides):
        raise ValueError(f"{name}: {overrides!r} must be overrides to run.yaml, method=<name> the first")
    return method_label(overrides)


def method_label(overrides: str) -> str:
    """ "method=d2cache method.current_k=8" -> "d2cache": the name alone, the settings are on record."""
    return overrides.split()[0].removeprefix("method=")


def partial_steps(generation: Generation) -> list[float]:
    """Seconds spent deciding in each step of a traced generation that is no refresh."""
    return [sum(step.seconds[phase] for phase in DECISION_PHASES) for step in generation.steps if not step.refresh]


def costs(model: Transformer, generation: Generation) -> dict[str, float]:
    """Seconds a step, those of the unfused attention path among them, the share of them spent deciding, the unfused
    path included, and the mean rows computed in a partial step.
    """
    deciding = sum(generation.seconds[phase] for phase in DECISION_PHASES)
    unfused = unfused_seconds(model, generation) if generation.seconds["observer"] else 0.0
    rows = generation.rows_total / generation.nfe
    partial = max(1, generation.nfe - generation.refreshes)
    return {
        "unfused": unfused / generation.nfe,
        "step": generation.total_seconds / generation.nfe,
        "share": (deciding + unfused) / generation.total_seconds,
        "computed": (generation.rows_computed - generation.refreshes * rows) / partial,
    }


def slope(x: pd.Series, y: pd.Series) -> float:
    """Least-squares slope of log y over log x."""
    return float(np.polyfit(np.log(x.to_numpy(float)), np.log(y.to_numpy(float)), 1)[0])


def correlation(operations: pd.Series, seconds: pd.Series) -> float:
    """Pearson's of time with the formula's operations: 1 where time is a fixed cost plus so much an operation. NaN for
    fewer than three points, whose correlation says nothing.
    """
    if operations.nunique() < 3:
        return math.nan
    return float(np.corrcoef(operations.to_numpy(float), seconds.to_numpy(float))[0, 1])


def conclude(slopes: pd.DataFrame) -> list[str]:
    """Two sentences: the method's own claim, and the others beside their formulas."""
    table = {(line["method"], line["axis"]): line for line in slopes.to_dict("records")}
    said = []
    for axis in ("rows", "layers"):
        own = table["entropycache", axis]
        word = "does not change" if abs(own["change"]) < FLAT else ("grows" if own["change"] > 0 else "falls")
        said.append(f"{word} from {own['from']:,.0f} to {own['to']:,.0f} {axis} ({100 * own['change']:+.1f} %)")
    vocab = table["entropycache", "vocab"]
    others = []
    for method in (name for name in ("d2cache", "elastic_cache") if (name, "rows") in table):
        pairs = {axis: table[method, axis] for axis in ("rows", "layers")}
        parts = [
            f"{figure(one['correlation'])} over {axis} (slope {one['slope']:.2f}, formula {one['formula']:.2f})"
            for axis, one in pairs.items()
        ]
        alike = all(one["change"] > FLAT and one["correlation"] > LINEAR for one in pairs.values())
        others.append(f"{title(method)}'s {'does' if alike else 'does not'}, {' and '.join(parts)}")
    return [
        f"EntropyCache's decision time {' and '.join(said)}; its slope over the vocabulary is {vocab['slope']:.2f}, "
        f"its correlation with V {figure(vocab['correlation'])}.",
        "Decision time grows as its formula, a fixed cost and so much an operation, by the correlation of the two: "
        f"{'; '.join(others) or 'not measured'}.",
    ]


def draw(study: Overhead, points: pd.DataFrame, folder: Path) -> Path:
    """Decision time a step along every axis, and its share of the time along the rows."""
    with panels(len(AXES) + 1, columns=3, size=(3.8, 3.2)) as (figure, axes):
        for ax, axis in zip(axes, AXES, strict=False):
            for method, part in study.along(axis, points):
                if base(method) == "full_recompute":
                    continue
                look = style(method)
                kind: Any = {"color": look.colour, "marker": look.marker, "linestyle": look.line, "markersize": 5}
                ax.plot(part[axis], 1e6 * part["decision"], label=title(method), **kind)
                if axis == "rows":
                    axes[-1].plot(part[axis], 100 * part["share"], **kind)
            logarithmic(ax, "x")
            logarithmic(ax, "y")
            ax.set_xticks(study.axes[axis], [f"{value:,}" for value in study.axes[axis]], rotation=30)
            ax.set(xlabel=AXES[axis], ylabel="deciding, µs a step")
        logarithmic(axes[-1], "x")
        axes[-1].set_xticks(study.axes["rows"], [f"{value:,}" for value in study.axes["rows"]], rotation=30)
        axes[-1].set(xlabel=AXES["rows"], ylabel="share of the time (%),\nunfused attention included")
        legend_below(figure, axes, columns=5)
        figure.suptitle("Random weights, one axis varied at a time")
        return save(figure, folder, "overhead")
