"""Does the entropy of the tokens just decoded predict how far cached keys and values drift? (arXiv 2603.18489's first
observation.)

Under full recompute, step by step: E, the largest entropy of the tokens that a pass committed, against the distance
between the keys and values of that pass and of the next, which a cache that skips the next pass would get wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from entropycache.settings import number, several, share, whole
from evaluation.report.formats import percent
from evaluation.report.plots import panels, save
from evaluation.report.style import style
from evaluation.studies.association import Estimate, area, caught, estimate, pearson, resamples, roc, spearman
from evaluation.studies.result import Frames, StudyResult, Table
from evaluation.studies.trajectory import Pass, Subject, moved, passes

TENSORS = ("keys", "values")
ROWS = ("kept", "prompt", "decoded", "masked", "just_decoded")
METRICS = ("cosine", "l2")
DRIFT = [f"{tensor}_kept_cosine" for tensor in TENSORS]  # their mean is the drift that signals are judged by
SIGNALS = {
    "entropy_max": "largest entropy",
    "entropy_mean": "mean entropy",
    "doubt_max": "largest 1 - confidence",
    "tokens": "tokens decoded",
    "since_refresh": "steps since refresh",
    "random": "random",
}
SHADES = (style("entropycache").colour, "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#888888")
COLOURS = dict(zip(SIGNALS, SHADES, strict=True))
CAPTION = (
    "Full recompute. Drift: 1 - cosine similarity of a row's keys and values between a pass and the next, mean over "
    "layers and over kept rows, i.e. all rows whose token did not change in between (prompt, decoded before, still "
    "masked). A signal is what is known when the next pass is planned. High-drift steps: the {share} with the most "
    "drift. Recall at 25: share of them among the 25 % of steps that score highest on the signal: equal refresh rates "
    "for every signal. Steps since refresh: a refresh every {interval} steps. Intervals: 95 %, bootstrap over prompts."
)


@dataclass(frozen=True)
class Drift:
    """Settings: how many prompts, which share of the steps counts as high drift, at which rates signals are compared,
    and the thresholds tau (nats) that are tabulated.
    """

    prompts: int
    high_share: float
    rates: Sequence[float]
    taus: Sequence[float]
    seed: int = 0
    name: str = "drift"

    def __post_init__(self) -> None:
        share("study.high_share", self.high_share)
        several("study.rates", self.rates, share)
        several("study.taus", self.taus, number)
        whole("study.seed", self.seed, 0)

    def measure(self, subject: Subject) -> Frames:
        """`steps`: signals and drift of every step but a sequence's last. `layers`: the drift layer by layer."""
        answerer, steps, layers = subject.answerer, [], []
        for index, prompt in enumerate(subject.prompts(self.prompts)):
            for before, after in pairwise(passes(answerer.model, prompt, answerer.decoding, answerer.seed)):
                drift = drifts(before, after)
                place = {"model": subject.name, "prompt": index, "step": before.state.step}
                steps.append(place | signals(before) | _named(drift.nanmean(dim=2)))
                layers += [place | {"layer": i} | _named(drift[:, :, i]) for i in range(drift.shape[2])]
        if not steps:
            raise ValueError(f"{subject.name}: every answer took one pass, so that nothing drifts; more steps would do")
        return {"steps": pd.DataFrame(steps), "layers": pd.DataFrame(layers)}

    def report(self, measured: Frames, folder: Path) -> StudyResult:
        steps = measured["steps"].assign(drift=measured["steps"][DRIFT].mean(axis=1))
        interval = max(2, round(1 / self.high_share))
        steps = steps.assign(since_refresh=steps["step"] % interval, random=0.0)
        cut = steps.groupby("model")["drift"].transform(lambda drift: drift.quantile(1 - self.high_share))
        steps = steps.assign(high=steps["drift"] > cut)
        parts = list(steps.groupby("model", sort=False))
        found = pd.concat([self.signal_table(str(model), part) for model, part in parts], ignore_index=True)
        related = pd.concat([self.correlation_table(str(model), part) for model, part in parts], ignore_index=True)
        layers = by_layer(measured["layers"])
        rates = tuple(f"recall_at_{100 * rate:g}" for rate in self.rates)
        return StudyResult(
            name=self.name,
            title="Does entropy predict drift?",
            caption=CAPTION.format(share=percent(self.high_share), interval=interval),
            conclusion=[line for model, part in parts for line in self.conclude(str(model), part, found, related)],
            tables=[
                Table("drift", "Signals of high drift", found, rates),
                Table("drift_correlation", "Largest entropy against drift", related),
                Table("drift_thresholds", "Entropy above tau", self.threshold_table(parts), THRESHOLD_SHARES),
                Table("drift_layers", "Drift by layer", layers),
            ],
            plots={
                f"Entropy and drift: {model}": draw(str(model), part, layers, folder, self.high_share)
                for model, part in parts
            },
            data={"steps": steps.drop(columns="random")},
        )

    def signal_table(self, model: str, steps: pd.DataFrame) -> pd.DataFrame:
        """Area under each signal's ROC curve, its difference from the largest entropy's, and recall at each rate."""
        weights, high = resamples(steps["prompt"].tolist(), self.seed), steps["high"].to_numpy()
        areas = {name: area(steps[name].to_numpy(float), high, weights) for name in SIGNALS}
        rows = []
        for name, heading in SIGNALS.items():
            own, over = estimate(areas[name]), estimate(areas[name] - areas["entropy_max"])
            row = {"model": model, "signal": heading, "area": own.value, "low": own.low, "high": own.high}
            row |= {"over_entropy": over.value, "over_low": over.low, "over_high": over.high}
            scores = steps[name].to_numpy(float)
            rows.append(row | {f"recall_at_{100 * rate:g}": caught(scores, high, rate) for rate in self.rates})
        return pd.DataFrame(rows)

    def correlation_table(self, model: str, steps: pd.DataFrame) -> pd.DataFrame:
        """Spearman's and Pearson's of the largest entropy with every kind of drift."""
        kinds = [("both", "kept", "cosine", "drift")]
        kinds += [(t, rows, metric, f"{t}_{rows}_{metric}") for rows in ROWS for t in TENSORS for metric in METRICS]
        table = []
        for tensor, rows, metric, column in kinds:
            known = steps.dropna(subset=[column])
            weights = resamples(known["prompt"].tolist(), self.seed)
            pair = known["entropy_max"].to_numpy(float), known[column].to_numpy(float)
            row = {"model": model, "tensor": tensor, "rows": rows, "metric": metric, "n": len(known)}
            for name, of in (("spearman", spearman), ("pearson", pearson)):
                found = estimate(of(*pair, weights))
                row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
            table.append(row)
        return pd.DataFrame(table)

    def threshold_table(self, parts: Sequence[tuple]) -> pd.DataFrame:
        """How often entropy > tau would refresh, and which high-drift steps it finds."""
        rows = []
        for model, steps in parts:
            for tau in self.taus:
                above, high = steps["entropy_max"] > tau, steps["high"]
                shares = (above.mean(), above[high].mean(), above[~high].mean(), high[above].mean())
                rows.append({"model": model, "tau": tau} | dict(zip(THRESHOLD_SHARES, shares, strict=True)))
        return pd.DataFrame(rows)

    def conclude(self, model: str, steps: pd.DataFrame, found: pd.DataFrame, related: pd.DataFrame) -> list[str]:
        """Two sentences on one model."""
        first = related[(related["model"] == model) & (related["tensor"] == "both")].iloc[0]
        rho = Estimate(first["spearman"], first["spearman_low"], first["spearman_high"])
        if rho.low > 0:
            relation = "the more uncertain the tokens just decoded, the further kept keys and values move"
        elif rho.high < 0:
            relation = "the more uncertain the tokens just decoded, the less kept keys and values move"
        else:
            relation = "no relation is shown between the entropy of the tokens just decoded and drift"
        own = found[found["model"] == model].set_index("signal")
        entropy = Estimate(*own.loc[SIGNALS["entropy_max"], ["area", "low", "high"]])
        chance = "better than chance" if entropy.low > 0.5 else "not shown to be better than chance"
        rivals = own.drop(index=SIGNALS["entropy_max"])
        better = rivals.index[rivals["over_low"] > 0].tolist()
        worse = rivals.index[rivals["over_high"] < 0].tolist()
        beside = [f"{', '.join(names)} {word}" for names, word in ((better, "better"), (worse, "worse")) if names]
        alike = [name for name in rivals.index if name not in (*better, *worse)]
        beside += [f"{', '.join(alike)} not told apart from it"] if alike else []
        return [
            f"{model}: {relation} (Spearman {rho}, {len(steps)} steps of {steps['prompt'].nunique()} prompts).",
            f"{model}: entropy finds the {percent(self.high_share)} of steps with the most drift with an area of "
            f"{entropy}, {chance}; beside it: {'; '.join(beside)}.",
        ]


THRESHOLD_SHARES = ("refresh_rate", "recall", "false_alarms", "precision")


def signals(one: Pass) -> dict[str, float]:
    """What a pass's commit tells before the next pass is planned."""
    entropy, doubt = one.commit.entropy, 1 - one.commit.confidence
    assert entropy is not None
    if not len(one.commit):  # Dream's own sampler may commit nothing in a step
        return {"entropy_max": 0.0, "entropy_mean": 0.0, "doubt_max": 0.0, "tokens": 0}
    return {
        "entropy_max": entropy.max().item(),
        "entropy_mean": entropy.mean().item(),
        "doubt_max": doubt.max().item(),
        "tokens": len(one.commit),
    }


def groups(before: Pass, after: Pass) -> Bool[Tensor, "5 t"]:
    """ROWS as masks: which rows were computed with the token that they have in `after`, and of which kind they are."""
    fresh = before.state.masked & ~after.state.masked
    prompt = before.state.all_rows < before.state.prompt_length
    decoded = ~before.state.masked & ~prompt
    return torch.stack([~fresh, prompt, decoded, after.state.masked, fresh])


def drifts(before: Pass, after: Pass) -> Float[Tensor, "2 2 l 5"]:
    """Mean movement [metric, tensor, layer, group of rows] between two passes; NaN of a group without rows."""
    pairs = ((before.cache.k, after.cache.k), (before.cache.v, after.cache.v))
    distance = torch.stack([moved(*pair) for pair in pairs], dim=1)
    chosen = groups(before, after).to(distance)
    return torch.einsum("mslt,gt->mslg", distance, chosen) / chosen.sum(dim=1)


def _named(drift: Float[Tensor, "2 2 5"]) -> dict[str, float]:
    values = drift.tolist()
    return {
        f"{tensor}_{rows}_{metric}": values[m][s][g]
        for m, metric in enumerate(METRICS)
        for s, tensor in enumerate(TENSORS)
        for g, rows in enumerate(ROWS)
    }


def by_layer(layers: pd.DataFrame) -> pd.DataFrame:
    """Mean drift over steps, a row a layer and tensor, a column a kind of rows."""
    means = layers.drop(columns=["prompt", "step"]).groupby(["model", "layer"], sort=False).mean().reset_index()
    rows = [
        {"model": row["model"], "layer": int(row["layer"]), "tensor": tensor}
        | {f"{kind}_{metric}": row[f"{tensor}_{kind}_{metric}"] for metric in METRICS for kind in ROWS}
        for _, row in means.iterrows()
        for tensor in TENSORS
    ]
    return pd.DataFrame(rows)


def draw(model: str, steps: pd.DataFrame, layers: pd.DataFrame, folder: Path, high_share: float) -> Path:
    """Drift against entropy with the median of each tenth of the steps; ROC curves; drift by layer."""
    below: dict[str, Any] = {"fontsize": 7, "loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
    with panels(3, columns=3, size=(4.2, 4.0)) as (figure, axes):
        colour = COLOURS["entropy_max"]
        axes[0].scatter(steps["entropy_max"], steps["drift"], s=9, color=colour, alpha=0.35, linewidths=0)
        tenths = steps["entropy_max"].rank(method="first") * 10 // (len(steps) + 1)
        trend = steps.groupby(tenths)[["entropy_max", "drift"]].median()
        axes[0].plot(trend["entropy_max"], trend["drift"], color="black", linewidth=1.5, label="median of each tenth")
        axes[0].legend(fontsize=8)
        axes[0].set(title="each step", xlabel="largest entropy just decoded (nats)", ylabel="drift (1 - cosine)")
        high = steps["high"].to_numpy()
        for name, heading in SIGNALS.items():
            scores = steps[name].to_numpy(float)
            label = f"{heading} ({area(scores, high, np.ones((1, len(steps))))[0]:.2f})"
            width = 2.2 if name == "entropy_max" else 1.2
            axes[1].plot(*roc(scores, high), color=COLOURS[name], linewidth=width, label=label)
        axes[1].legend(**below)
        axes[1].set(title=f"finding the {percent(high_share)} with most drift", xlabel="false positives")
        axes[1].set_ylabel("true positives")
        own = layers[layers["model"] == model]
        kinds = zip(("prompt", "decoded", "masked"), ("#888888", colour, "#D55E00"), strict=True)
        for kind, shade in kinds:
            for tensor, line in zip(TENSORS, ("-", "--"), strict=True):
                part = own[own["tensor"] == tensor]
                axes[2].plot(part["layer"], part[f"{kind}_cosine"], line, color=shade, label=f"{tensor}, {kind} rows")
        axes[2].legend(**below)
        axes[2].set(title="by layer", xlabel="layer", ylabel="mean drift (1 - cosine)")
        axes[2].set_xticks(sorted(own["layer"].unique()))
        figure.suptitle(model)
        return save(figure, folder, f"drift_{model}")
