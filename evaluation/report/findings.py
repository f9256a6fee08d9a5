"""What the figures say, in sentences that follow from them by rule; where they differ in kind from published ones, why.

No sentence is written by hand for a result: other runs give other sentences.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pandas as pd

from evaluation.report.entries import Entry
from evaluation.report.formats import accuracy_cell, known, percent, speedup_cell
from evaluation.report.reference import Published, beside, claim_rows
from evaluation.report.runs import REFERENCE
from evaluation.report.style import base, title
from evaluation.report.tables import accuracy_rows, frame, overhead_rows
from evaluation.statistics import times

METHOD = "entropycache"
LIKE = 2.0  # two figures are "of the same size" within this factor
SIGNIFICANT = 0.05  # of McNemar's p; with many rows a few fall below it by chance, and the text says so
FIXED = 1.25  # a step's time above this multiple of its share of rows is called fixed cost


def findings(rows: Sequence[Entry], published: Published | None) -> list[str]:
    """Sentences on speed, accuracy and overhead, and, with published figures, on what differs from them in kind."""
    table = frame(rows)
    found = [*_speedups(table), *_fastest(table), *_slower(table), *_accuracy(rows)]
    if published:
        found += [*_claims(rows, published), *_overheads(table, published), *_published_orders(rows, published)]
    return [*found, *_why(rows, table)]


def _name(row: pd.Series) -> str:
    return f"{title(row['method'])}, {row['decoding']}"


def _speedups(table: pd.DataFrame) -> list[str]:
    """The method's speedup with its accuracy beside it, a sentence a model and decoding."""
    found = []
    mine = table[(table["method"].map(base) == METHOD) & table["speedup"].notna()]
    for (model, method, decoding), part in mine.groupby(["model", "method", "decoding"], sort=False):
        said = []
        for _, row in part.iterrows():
            split = ""
            if known(row["speedup_from_caching"]):
                parts = times(row["speedup_from_caching"]), times(row["speedup_from_parallel"])
                split = f" = {parts[0]} by caching · {parts[1]} by parallel decoding"
            same = (table["model"] == model) & (table["benchmark"] == row["benchmark"]) & (table["method"] == REFERENCE)
            reference = table[same & (table["speedup"] == 1)]
            accuracy = f", accuracy {accuracy_cell(row)} %" if known(row["accuracy"]) else ""
            if accuracy and len(reference) and known(reference.iloc[0]["accuracy"]):
                accuracy += f" against {accuracy_cell(reference.iloc[0])} %"
            said.append(f"{row['benchmark']} {speedup_cell(row)}{split}{accuracy}")
        heading = f"{model}, {title(str(method))}, {decoding}, over one-token full recompute"
        found.append(f"{heading}: {'; '.join(said)}.")
    return found


def _fastest(table: pd.DataFrame) -> list[str]:
    """On how many benchmarks each row is the fastest, and the order of mean ranks, a sentence a model."""
    found = []
    timed = table.dropna(subset=["speedup"])
    for model, part in timed.groupby("model", sort=False):
        groups = [rows for _, rows in part.groupby("benchmark", sort=False) if len(rows) > 2]
        if not groups:
            continue
        first = Counter(_name(rows.sort_values("speedup", kind="stable").iloc[-1]) for rows in groups)
        ranks = pd.concat(rows.assign(rank=rows["speedup"].rank(ascending=False)) for rows in groups)
        order = ranks.groupby(["method", "decoding"], sort=False)["rank"].mean().sort_values(kind="stable")
        names = "; ".join(f"{title(method)}, {decoding}" for method, decoding in order.index)
        wins = "; ".join(f"{name} on {count} of {len(groups)}" for name, count in first.most_common())
        found.append(f"{model}, fastest by benchmark: {wins}. By mean rank: {names}.")
    return found


def _slower(table: pd.DataFrame) -> list[str]:
    """Slowdowns, printed as they are."""
    found = []
    costly = table["method"] != REFERENCE
    for column, chosen, saying in (
        ("speedup", table["speedup"] < 1, "Slower than one-token full recompute"),
        ("speedup_from_caching", (table["speedup_from_caching"] < 1) & costly, "Caching costs more than it saves"),
    ):
        slow = table[chosen]
        if len(slow):
            listed = [f"{r['model']}, {r['benchmark']}, {_name(r)} {times(r[column])}" for _, r in slow.iterrows()]
            found.append(f"{saying}: {'; '.join(listed)}.")
    return found


def _accuracy(rows: Sequence[Entry]) -> list[str]:
    tested = accuracy_rows(rows).dropna(subset=["p"])
    if tested.empty:
        return []
    differing = tested[tested["p"] < SIGNIFICANT]
    test = f"exact McNemar test on the same samples, {len(tested)} rows, {tested['n_paired'].min()} samples or more"
    if differing.empty:
        return [f"No row's accuracy differs from its reference's at p < {SIGNIFICANT} ({test})."]
    listed = "; ".join(
        f"{row['model']}, {row['benchmark']}, {_name(row)}: p = {row['p']:.2g}, right alone: reference "
        f"{row['only_reference']}, method {row['only_method']}"
        for _, row in differing.iterrows()
    )
    chance = f"{SIGNIFICANT * len(tested):.1f} would do so by chance"
    return [f"Accuracy differs from the reference's at p < {SIGNIFICANT} ({test}; {chance}): {listed}."]


# -- beside published figures ----------------------------------------------------------------------------------------


def _size(value: float, published: float) -> str:
    if value > LIKE * published:
        return "larger than published"
    return "smaller than published" if value * LIKE < published else "of the size published"


def _claims(rows: Sequence[Entry], published: Published) -> list[str]:
    """The paper's speedups beside those measured here."""
    table = claim_rows(published, rows)
    said = []
    for _, claim in table[(table["quantity"] == "speedup") & (table["rows_here"] > 0)].iterrows():
        low, high = claim["here_low"], claim["here_high"]
        span = times(low) if low == high else f"{times(low)} to {times(high)}"
        size = _size((low * high) ** 0.5, claim["published"])
        said.append(f"{claim['model']}, {claim['scope']}: {claim['published']}× published, {span} here ({size})")
    return [f"Speedup of {title(METHOD)} beside the paper's: {'; '.join(said)}."] if said else []


def _overheads(table: pd.DataFrame, published: Published) -> list[str]:
    """Size and order of the shares of time spent deciding."""
    claimed = {c["method"]: c["value"] / 100 for c in published.claims if c["quantity"] == "decision overhead"}
    shares = {
        method: table[table["method"].map(base) == method]["decision_share"].dropna().sort_values()
        for method in claimed
    }
    shares = {method: values for method, values in shares.items() if len(values)}
    if not shares:
        return []
    said = []
    for method, values in shares.items():
        ends = percent(values.iloc[0]), percent(values.iloc[-1])
        span = ends[0] if ends[0] == ends[1] else " to ".join(ends)
        size = _size(values.median(), claimed[method])
        said.append(f"{title(method)} {span} (published {percent(claimed[method])}: {size})")
    measured = sorted(shares, key=lambda method: shares[method].median())
    paper = sorted(shares, key=lambda method: claimed[method])
    order = "as published" if measured == paper else f"not as published ({' < '.join(map(title, paper))})"
    ranked = f" The order, {' < '.join(map(title, measured))}, is {order}." if len(shares) > 1 else ""
    return [f"Share of generation time spent deciding: {'; '.join(said)}.{ranked}"]


def _published_orders(rows: Sequence[Entry], published: Published) -> list[str]:
    """For each two caches of a published table: which is faster there, and which here."""
    settings: dict[tuple, dict[str, float]] = {}
    for row in published.rows:
        if not row["method"].startswith(REFERENCE):
            place = tuple(row[key] for key in ("source", "model", "benchmark", "shots", "gen_length"))
            settings.setdefault(place, {})[row["method"]] = row["tokens_per_second"]
    speedups = {id(entry): ratio.value for entry in rows if (ratio := entry.total_speedup)}
    found = []
    for first, second in combinations(sorted({method for setting in settings.values() for method in setting}), 2):
        both = {place: speeds for place, speeds in settings.items() if first in speeds and second in speeds}
        there = [speeds[first] > speeds[second] for speeds in both.values()]
        here = {}
        for _, model, benchmark, *_ in both:
            asked = [{"model": model, "benchmark": benchmark, "method": method} for method in (first, second)]
            ours = [beside(published, row, rows) for row in asked]
            for one in ours[0]:
                for other in (entry for entry in ours[1] if entry.group == one.group):
                    if id(one) in speedups and id(other) in speedups:
                        pair = (*one.group, one.method, one.decoding, other.method, other.decoding)
                        here[pair] = speedups[id(one)] > speedups[id(other)]
        if here:
            same = (2 * sum(there) > len(there)) == (2 * sum(here.values()) > len(here))
            order = "the same order" if same else "another order"
            found.append(
                f"{first} is faster than {second} in {sum(there)} of {len(there)} published settings and in "
                f"{sum(here.values())} of {len(here)} here: {order} on the whole."
            )
    return found


def _why(rows: Sequence[Entry], table: pd.DataFrame) -> list[str]:
    """Why a share of the rows is not the same share of the time: what a step costs whatever its rows."""
    keys = ["model", "benchmark", "method", "decoding"]
    costs = overhead_rows(rows)[[*keys, "ms_per_step"]].merge(table[[*keys, "recompute_ratio"]], on=keys)
    full = costs[costs["method"] == REFERENCE].groupby(keys[:2])["ms_per_step"].median()
    cached = costs[costs["method"] != REFERENCE].join(full.rename("full"), on=keys[:2])
    cached = cached.assign(cost=cached["ms_per_step"] / cached["full"]).dropna()
    found = []
    for model, part in cached.groupby("model", sort=False):
        middle = part.groupby("method", sort=False)[["recompute_ratio", "cost"]].median()
        fixed = middle[middle["cost"] > FIXED * middle["recompute_ratio"]]
        if len(fixed):
            said = [
                f"{title(str(method))} {percent(rows_computed)} of the rows in {percent(cost)} of the time"
                for method, rows_computed, cost in fixed.itertuples()
            ]
            found.append(
                f"{model}: a step does not get cheaper in proportion to the rows it computes: {'; '.join(said)} "
                "of a full-recompute step (medians over benchmarks). The difference is what a step costs whatever its "
                "rows: launching operations, choosing tokens, deciding. It weighs the more the smaller the model and "
                "the shorter the sequence, and bounds what caching can give here."
            )
    return found
