"""Which tau and k? For a model, a benchmark and a tolerated loss of accuracy: successive halving on held-out prompts.

What a user with a new model needs first. Every trial is a run of a store of its own (`store`): its questions are not
those of any table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from baselines import FullRecompute
from entropycache import CachePolicy, EntropyCache
from entropycache.settings import number, real, several, share, whole
from evaluation.report.formats import figure, percent
from evaluation.report.plots import interval, legend_below, panels, save
from evaluation.report.style import SERIES
from evaluation.scorers import SCORERS, CodeOptions
from evaluation.store import RunStore
from evaluation.studies.halving import Outcome, Search, Trial, compare, search
from evaluation.studies.result import Frames, StudyResult, Table
from evaluation.studies.trajectory import Subject

Pair = tuple[float, int]  # tau, k
COSTS = {"flops": "FLOPs", "rows_computed": "rows computed", "seconds": "time"}
SHARES = ("accuracy", "loss", "low", "high", "cost", "within")
CAPTION = (
    "Successive halving over tau (nats) and k: all pairs on few held-out prompts, the half that is expected to save "
    "most on twice as many, and so on. Loss: accuracy of full recompute with the same decoding less that of the pair, "
    "same prompts, with its 95 % interval; cost: {cost} as a share of full recompute's; within: probability that the "
    "loss is at most {tolerance}. Chosen: the cheapest pair asked all prompts with a probability of {confidence} or "
    "more; then checked on fresh prompts. Held-out prompts are the last of the benchmark, fresh ones stand before them."
)


@dataclass(frozen=True)
class Calibrate:
    """Settings: the pairs tried, the tolerated loss (a share: 0.02 is two points) and how sure to be of it, prompts of
    the last rung, number of rungs, fresh prompts of the check, what counts as cost (a sample's `flops`, `rows_computed`
    or `seconds`), and the folder of the trials' store.
    """

    taus: Sequence[float]
    ks: Sequence[int]
    tolerance: float
    confidence: float
    prompts: int
    rungs: int
    fresh: int
    cost: str
    batch_size: int
    store: str
    allow_code_execution: bool = False
    name: str = "calibrate"

    def __post_init__(self) -> None:
        several("study.taus", self.taus, number)
        several("study.ks", self.ks, partial(whole, least=0, of="tokens"))
        whole("study.fresh", self.fresh, 0, "prompts")
        whole("study.prompts", self.prompts, 1, "prompts")
        whole("study.rungs", self.rungs, 1)
        whole("study.batch_size", self.batch_size, 1, "sequences")
        real("study.tolerance", self.tolerance, lambda x: 0 <= x < 1, "a share from 0, below 1")
        share("study.confidence", self.confidence)
        if self.cost not in COSTS:
            raise ValueError(f"study.cost={self.cost} is unknown; one of {', '.join(COSTS)}")
        if self.prompts >> (self.rungs - 1) < 1:
            raise ValueError(f"study.prompts={self.prompts} cannot be halved {self.rungs - 1} times; more would do")

    @property
    def pairs(self) -> list[Pair]:
        return [(float(tau), int(k)) for tau in self.taus for k in self.ks]

    def measure(self, subject: Subject) -> Frames:
        """`trials`: every trial, and the check of the chosen pair on fresh prompts (rung "fresh")."""
        known, benchmark = len(subject.requests), str(subject.config["benchmark"]["name"])
        if self.prompts + self.fresh > known:
            raise ValueError(
                f"study.prompts={self.prompts} and study.fresh={self.fresh} are more than the {known} questions"
            )
        if SCORERS[benchmark].runs_code and not self.allow_code_execution:
            raise ValueError(
                f"benchmark.name={benchmark} is judged by running what the model writes; "
                "allow_code_execution=true allows it (docs/security.md says what confines it)"
            )
        held_out = range(known - self.prompts, known)
        found = search(
            self.pairs,
            self.answer(subject, held_out, self.prompts, None),
            lambda pair, n: self.answer(subject, held_out, n, pair),
            tolerance=self.tolerance,
            confidence=self.confidence,
            prompts=self.prompts,
            rungs=self.rungs,
        )
        place = {"model": subject.name, "benchmark": benchmark}
        rows = [place | row(trial, str(trial.rung), state(trial, found)) for trial in found.trials]
        if found.chosen and self.fresh:
            pair, fresh = found.chosen.setting, range(held_out.start - self.fresh, held_out.start)
            full, own = (self.answer(subject, fresh, self.fresh, one) for one in (None, pair))
            rows.append(place | row(compare(pair, self.rungs, full, own, self.tolerance), "fresh", "checked"))
        return {"trials": pd.DataFrame(rows)}

    def answer(self, subject: Subject, places: range, count: int, pair: Pair | None) -> Outcome:
        """What came of the first `count` of some questions; None is full recompute. What the store has is not made
        again.
        """
        policy: CachePolicy = FullRecompute() if pair is None else EntropyCache(*pair)
        method = {"name": "full_recompute"} if pair is None else {"name": "entropycache", "tau": pair[0], "k": pair[1]}
        config = {**subject.config, "method": method, "questions": [places.start, places.stop]}
        config["batch_size"] = self.batch_size
        asked = [replace(subject.requests[place], index=index) for index, place in enumerate(places)]
        answerer = replace(subject.answerer, policy=policy, batch_size=self.batch_size, trace=False)
        with RunStore(self.store).open(config, {**subject.manifest, "samples": len(asked)}) as run:
            for sample, _ in answerer.samples([asked[index] for index in run.missing if index < count]):
                run.append(sample)
            samples = run.samples[:count]
            if not run.missing:
                run.finish()
        scorer = SCORERS[str(subject.config["benchmark"]["name"])]
        docs, texts = [sample["doc"] for sample in samples], [sample["text"] for sample in samples]
        scores = scorer.score_all(docs, texts, CodeOptions(self.allow_code_execution)).scores
        return Outcome(
            [score[scorer.shown].correct for score in scores], [float(sample[self.cost]) for sample in samples]
        )

    def report(self, measured: Frames, folder: Path) -> StudyResult:
        trials = measured["trials"]
        parts = list(trials.groupby("model", sort=False))
        chosen = trials[trials["state"].isin(["chosen", "checked"])]
        return StudyResult(
            name=self.name,
            title="Which tau and k?",
            caption=CAPTION.format(
                cost=COSTS[self.cost], tolerance=percent(self.tolerance), confidence=percent(self.confidence)
            ),
            conclusion=[line for model, part in parts for line in self.conclude(str(model), part)],
            tables=[
                Table("calibrate", "The chosen pair, on held-out and on fresh prompts", chosen, SHARES),
                Table("calibrate_trials", "Every trial", trials, SHARES),
            ],
            plots={f"Calibration: {model}": self.draw(str(model), part, folder) for model, part in parts},
        )

    def conclude(self, model: str, trials: pd.DataFrame) -> list[str]:
        """Two sentences on one model."""
        where, tolerated = f"{model}, {trials['benchmark'].iloc[0]}", f"tolerated: {points(self.tolerance)}"
        chosen = trials[trials["state"] == "chosen"]
        if chosen.empty:
            last = trials[trials["n"] == trials["n"].max()]
            sure = last[last["within"] >= self.confidence]
            asked = f"of the pairs asked all {last['n'].iloc[0]} prompts"
            if len(sure):
                first = f"{asked}, those within the tolerance cost no less than full recompute"
                more = "nothing is lost by it"
            else:
                first = f"{asked}, none is within the tolerance with a probability of {percent(self.confidence)}"
                more = "more prompts or a larger tolerance may find a pair"
            return [
                f"{where}: {first} ({tolerated}).",
                f"{where}: tau = -1, which is full recompute, is what is left; {more}.",
            ]
        one = chosen.iloc[0]
        pair = f"tau = {figure(one['tau'])}, k = {figure(one['k'])}"
        first = (
            f"{where}: {pair} costs {percent(one['cost'])} of full recompute in {COSTS[self.cost]} and loses "
            f"{loss_of(one)} points of accuracy on {one['n']} held-out prompts ({tolerated})."
        )
        check = trials[trials["state"] == "checked"]
        if check.empty:
            return [first, f"{where}: it was not checked on fresh prompts."]
        seen = check.iloc[0]
        if seen["high"] <= self.tolerance:
            verdict = "within the tolerance, its whole interval too"
        elif seen["low"] > self.tolerance:
            verdict = "above the tolerance"
        elif seen["loss"] <= self.tolerance:
            verdict = "within the tolerance, its interval reaches beyond"
        else:
            verdict = "above the tolerance, its interval reaches below"
        return [first, f"{where}: on {seen['n']} fresh prompts {pair} loses {loss_of(seen)} points: {verdict}."]

    def draw(self, model: str, trials: pd.DataFrame, folder: Path) -> Path:
        """Loss against cost, each pair as last tried, a line a k; the chosen one is ringed, its check is a star."""
        with panels(1, size=(6.4, 4.2)) as (drawing, (ax,)):
            last = trials[trials["rung"] != "fresh"].groupby(["tau", "k"], sort=False).tail(1)
            for number, (k, part) in enumerate(last.sort_values("tau").groupby("k")):
                shade, marker = SERIES[number % len(SERIES)]
                ax.plot(part["cost"], 100 * part["loss"], color=shade, marker=marker, markersize=5, label=f"k = {k}")
                for _, one in part[part["n"] == last["n"].max()].iterrows():
                    error = interval(100 * one["loss"], 100 * one["low"], 100 * one["high"])
                    ax.errorbar(one["cost"], 100 * one["loss"], yerr=error, color=shade, capsize=2, linewidth=1)
            for state_, marker, label in (("chosen", "o", "chosen"), ("checked", "*", "chosen, fresh prompts")):
                one = trials[trials["state"] == state_]
                look: Any = {"markersize": 13, "markerfacecolor": "none", "color": "#D55E00", "linestyle": ""}
                ax.plot(one["cost"], 100 * one["loss"], marker=marker, label=label, **look)
            ax.axhline(100 * self.tolerance, color="#888888", linestyle=":", label="tolerance")
            ax.set(xlabel=f"{COSTS[self.cost]}, share of full recompute's", ylabel="loss of accuracy (points)")
            legend_below(drawing, [ax], columns=4)
            drawing.suptitle(f"{model}, {trials['benchmark'].iloc[0]}: pairs (tau, k) as last tried")
            return save(drawing, folder, f"calibrate_{model}")


def row(trial: Trial[Pair], rung: str, state: str) -> dict[str, Any]:
    """A trial as a row of the table."""
    tau, k = trial.setting
    figures = {key: getattr(trial, key) for key in ("n", "accuracy", "loss", "low", "high", "cost", "within")}
    return {"tau": tau, "k": k, "rung": rung, **figures, "state": state}


def state(trial: Trial[Pair], found: Search[Pair]) -> str:
    """What became of a setting at a trial."""
    if trial == found.chosen:
        return "chosen"
    later = any(other.setting == trial.setting and other.rung > trial.rung for other in found.trials)
    return "kept" if later else "dropped"


def points(share: float) -> str:
    """A share as percentage points: 0.02 -> "2.0"."""
    return f"{100 * share:.1f}"


def loss_of(one: pd.Series) -> str:
    return f"{points(one['loss'])} [{points(one['low'])}, {points(one['high'])}]"
