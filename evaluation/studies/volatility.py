"""Do values keep moving after a token is decoded, and is recomputing the k newest worth it? (arXiv 2603.18489's second
observation.)

Under full recompute, how far the values of a decoded row move from pass to pass, against the number of passes that have
seen its token; and on the same tokens the error of partial passes that recompute the window and the k newest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from entropycache import EntropyCache
from entropycache.engine import union
from entropycache.kv_cache import KVCache
from entropycache.models.transformer import Transformer
from entropycache.settings import several, share, whole
from evaluation.report.formats import figure, percent
from evaluation.report.plots import panels, save
from evaluation.report.style import SERIES, style
from evaluation.statistics import paired_ratio
from evaluation.studies.result import Frames, StudyResult, Table
from evaluation.studies.trajectory import Pass, Subject, moved, passes

AGES = (1, 2, 4, 8, 16, 32)  # tabulated
ENOUGH = 0.9  # of the largest reduction of the error: from this k on, more rows are called of little use
CAPTION = (
    "Full recompute. Change: 1 - cosine similarity of a row's values between a pass and the next; age: how many passes "
    "had seen the row's token by then. Unstable: more change (mean over layers) than {rest} of the prompt's rows show. "
    "Error of a partial pass: relative L2 distance of the predicted rows' logits from those of the full pass, on the "
    "same tokens, when the cache is refreshed every {every} steps and a step computes the window's masks and the k "
    "newest tokens; agreement: predicted rows whose most likely token is the full pass's. Intervals: 95 %, bootstrap "
    "over prompts."
)


@dataclass(frozen=True)
class Volatility:
    """Settings: how many prompts; the share of the prompt's rows that a row at rest does not outdo; the numbers k of
    newest tokens; and how many steps lie between the refreshes that partial passes start from.
    """

    prompts: int
    rest: float
    ks: Sequence[int]
    refresh_every: int
    name: str = "volatility"

    def __post_init__(self) -> None:
        share("study.rest", self.rest)
        several("study.ks", self.ks, partial(whole, least=0, of="tokens"))
        whole("study.refresh_every", self.refresh_every, 2, "steps")  # 1 leaves no partial pass
        if self.ks[0] != 0:
            raise ValueError(f"study.ks={list(self.ks)} must begin with 0: errors are held against it")

    def measure(self, subject: Subject) -> Frames:
        """`changes`: of every decoded row, age and layer (layer -1: their mean). `rest`: of the prompt's rows.
        `errors`: of every partial pass, by k.
        """
        answerer, changes, rest, errors = subject.answerer, [], [], []
        for number, prompt in enumerate(subject.prompts(self.prompts)):
            full = list(passes(answerer.model, prompt, answerer.decoding, answerer.seed))
            place: dict[str, Any] = {"model": subject.name, "prompt": number}
            found, at_rest = value_changes(full)
            changes.append(found.assign(**place))
            rest.append(pd.DataFrame({"change": at_rest.numpy()}).assign(**place))
            for k in self.ks:
                errors += [
                    place | {"k": k} | one for one in partial_errors(answerer.model, full, k, self.refresh_every)
                ]
        return {"changes": pd.concat(changes), "rest": pd.concat(rest), "errors": pd.DataFrame(errors)}

    def report(self, measured: Frames, folder: Path) -> StudyResult:
        changes = measured["changes"]
        bounds = measured["rest"].groupby("model", sort=False)["change"].quantile(self.rest)
        curve = age_table(changes[changes["layer"] < 0], bounds)
        layers = layer_table(changes[changes["layer"] >= 0])
        errors = error_table(measured["errors"])
        shown = curve[curve["age"].isin(AGES)]
        return StudyResult(
            name=self.name,
            title="Does volatility persist?",
            caption=CAPTION.format(rest=percent(self.rest), every=self.refresh_every),
            conclusion=[line for model in bounds.index for line in self.conclude(str(model), curve, errors)],
            tables=[
                Table("volatility", "Values after their token was decoded", shown, ("unstable",)),
                Table("volatility_recent", "Recomputing the k newest", errors, ("less_error", "agreement")),
                Table("volatility_layers", "By layer", layers),
            ],
            plots={
                f"Volatility: {model}": draw(str(model), curve, layers, errors, bounds[model], folder)
                for model in bounds.index
            },
            data={"volatility_by_age": curve},
        )

    def conclude(self, model: str, curve: pd.DataFrame, errors: pd.DataFrame) -> list[str]:
        """Two sentences on one model."""
        own = curve[curve["model"] == model].set_index("age")
        last = max((age for age in AGES if age in own.index), default=None)
        if last is None or last == AGES[0]:
            first = f"{model}: too few passes to follow a decoded row; decoding=one_token makes more."
        else:
            young, old = own.loc[AGES[0]], own.loc[last]
            word = "settle" if old["median"] < young["median"] / 2 else "go on moving"
            first = (
                f"{model}: the values of decoded rows {word}: the median change is {young['median']:.2g} after 1 step "
                f"and {old['median']:.2g} after {last}, with {percent(young['unstable'])} and "
                f"{percent(old['unstable'])} of the rows unstable."
            )
        mine = errors[errors["model"] == model].set_index("k")
        best = mine["less_error"].max()
        if not best > 0 or not (mine["less_low"] > 0).any():
            return [first, f"{model}: recomputing the newest tokens is not shown to lower the error of partial passes."]
        enough = int(mine.index[mine["less_error"] >= ENOUGH * best][0])
        one = mine.loc[enough]
        second = (
            f"{model}: recomputing the {enough} newest lowers the error of partial passes by "
            f"{percent(one['less_error'])} [{percent(one['less_low'])}, {percent(one['less_high'])}], which is "
            f"{ENOUGH:.0%} or more of what any k up to {mine.index.max()} gives ({percent(best)})."
        )
        return [first, second]


def value_changes(full: Sequence[Pass]) -> tuple[pd.DataFrame, Tensor]:
    """Changes of decoded rows' values by age and layer, and (mean over layers) of the prompt's rows.

    A row decoded by pass s is computed with its token from pass s + 1 on; its change from pass s + n to the next is
    that of age n.
    """
    frames, rest = [], []
    decoded_by = torch.full_like(full[0].state.tokens, -1)
    for number, (before, after) in enumerate(pairwise(full)):
        change = moved(before.cache.v, after.cache.v)[0]
        change = torch.cat([change, change.mean(dim=0, keepdim=True)])
        rest.append(change[-1, : before.state.prompt_length])
        rows = (decoded_by >= 0).nonzero().squeeze(1)
        layers = torch.arange(change.shape[0]).where(torch.arange(change.shape[0]) < change.shape[0] - 1, -1)
        columns = {
            "layer": layers.repeat_interleave(len(rows)),
            "age": (number - decoded_by[rows]).repeat(len(layers)),
            "change": change[:, rows].flatten().cpu(),
        }
        frames.append(pd.DataFrame({name: values.numpy() for name, values in columns.items()}))
        decoded_by[before.commit.rows] = number
    if not frames:
        return pd.DataFrame({"layer": [], "age": [], "change": []}), torch.empty(0)
    return pd.concat(frames, ignore_index=True), torch.cat(rest).cpu()


def partial_errors(model: Transformer, full: Sequence[Pass], k: int, every: int) -> Iterator[dict[str, float]]:
    """Partial passes over the tokens that the full passes saw, each with its error; step 0 and every `every`-th after
    it take the full pass's keys and values instead.
    """
    policy = EntropyCache(tau=math.inf, k=k)
    policy.start(model, full[0].state)
    cache = full[0].cache
    for number, one in enumerate(full):
        compute = policy.plan(one.state, one.predict).compute
        if number % every == 0:
            cache = copied(model, one.cache)
        else:
            compute = union(compute, model.sources(one.predict))
            yield {"step": number, "since_refresh": number % every, **error(model, one, compute, cache)}
        policy.observe(one.state.apply(one.commit), one.commit)


def error(model: Transformer, one: Pass, compute: Int[Tensor, " q"], cache: KVCache) -> dict[str, float]:
    """One partial pass against the full one."""
    with torch.inference_mode():
        logits = model.forward(one.state.tokens, compute, one.predict, cache).double()
    wanted = one.logits.double()
    distance = (logits - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    same = (logits.argmax(dim=-1) == wanted.argmax(dim=-1)).double()
    return {"error": distance.mean().item(), "agreement": same.mean().item(), "rows": compute.numel()}


def copied(model: Transformer, cache: KVCache) -> KVCache:
    """A cache of its own with the same keys and values."""
    copy = model.new_cache(cache.rows)
    copy.kv.copy_(cache.kv)
    copy.valid.fill_(True)
    return copy


# -- tables ----------------------------------------------------------------------------------------------------------


def age_table(changes: pd.DataFrame, bounds: pd.Series) -> pd.DataFrame:
    """Median, quartiles and share of unstable rows at every age."""
    bound = changes["model"].map(bounds)
    kinds = changes.assign(bound=bound, unstable=changes["change"] > bound).astype({"age": int})
    by_age = kinds.groupby(["model", "age"], sort=False)
    table = by_age.agg(n=("change", "size"), unstable=("unstable", "mean"), bound=("bound", "first"))
    return pd.concat([table, quartiles(by_age["change"])], axis=1).reset_index()


def layer_table(changes: pd.DataFrame) -> pd.DataFrame:
    """Median and quartiles by layer at the tabulated ages."""
    part = changes[changes["age"].isin(AGES)]
    return quartiles(
        part.astype({"layer": int, "age": int}).groupby(["model", "layer", "age"], sort=False)["change"]
    ).reset_index()


def quartiles(grouped: Any) -> pd.DataFrame:
    """Quartiles of grouped values, a column each."""
    ends = {"q25": 0.25, "median": 0.5, "q75": 0.75}
    return pd.DataFrame({name: grouped.quantile(share) for name, share in ends.items()})


def error_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Mean error by k, and by how much it is less than that of k = 0, paired over prompts."""
    rows = []
    for model, part in errors.groupby("model", sort=False):
        sums = part.pivot_table(index="prompt", columns="k", values="error", aggfunc="sum")
        for k, own in part.groupby("k", sort=False):
            ratio = paired_ratio(sums[k].tolist(), sums[0].tolist())
            less = {"less_error": 1 - ratio.value}
            less |= {"less_low": math.nan if ratio.high is None else 1 - ratio.high}
            less |= {"less_high": math.nan if ratio.low is None else 1 - ratio.low}
            means = {name: float(own[name].mean()) for name in ("error", "agreement", "rows")}
            rows.append({"model": model, "k": k, "passes": len(own)} | means | less)
    return pd.DataFrame(rows)


def draw(
    model: str, curve: pd.DataFrame, layers: pd.DataFrame, errors: pd.DataFrame, bound: float, folder: Path
) -> Path:
    """Change against age, the same by layer, and error against k."""
    colour = style("entropycache").colour
    with panels(3, columns=3, size=(4.0, 3.6)) as (drawing, axes):
        own = curve[curve["model"] == model].sort_values("age")
        axes[0].fill_between(own["age"], own["q25"], own["q75"], color=colour, alpha=0.2, label="quartiles")
        axes[0].plot(own["age"], own["median"], color=colour, label="median")
        axes[0].axhline(bound, color="#888888", linestyle=":", label="unstable above")
        axes[0].set(title="mean over layers", xlabel="passes since decoded", ylabel="change of values (1 - cosine)")
        axes[0].legend(fontsize=8)
        for number, (layer, part) in enumerate(layers[layers["model"] == model].groupby("layer")):
            shade, marker = SERIES[number % len(SERIES)]
            axes[1].plot(part["age"], part["median"], color=shade, marker=marker, markersize=4, label=f"layer {layer}")
        axes[1].set(title="median by layer", xlabel="passes since decoded", xscale="log")
        axes[1].set_xticks(AGES, [str(age) for age in AGES])
        axes[1].minorticks_off()
        axes[1].legend(fontsize=7)
        mine = errors[errors["model"] == model]
        axes[2].plot(range(len(mine)), mine["error"], color=colour, marker="P")
        axes[2].set_xticks(range(len(mine)), [figure(k) for k in mine["k"]])
        axes[2].set(title="partial passes", xlabel="k newest recomputed", ylabel="error of the logits", ylim=(0, None))
        drawing.suptitle(model)
        return save(drawing, folder, f"volatility_{model}")
