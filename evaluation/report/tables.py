"""The tables of a report as data frames. Every figure is one of `evaluation.statistics`; shares are fractions of 1."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from evaluation.report.entries import Entry, against, entries, main_entries, reference_of, together
from evaluation.report.runs import DONE, EMPTY, PARTIAL, Run
from evaluation.report.style import base
from evaluation.statistics import Mean, Ratio, Speedup, mean_of, ratio_of_sums

MAIN_COLUMNS = [
    "model",
    "benchmark",
    "method",
    "decoding",
    "n",
    "accuracy",
    "accuracy_se",
    "tokens_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "speedup_from_caching",
    "recompute_ratio",
    "refresh_rate",
    "tokens_per_forward",
    "decision_share",
]
# Beside MAIN_COLUMNS in the frame, for those who print it; not in main_table.csv.
STATE_COLUMNS = ["speedup_from_parallel", "state"]
TIMED_ONLY = "timed, not scored"


def accuracy(run: Run) -> Mean:
    """The accuracy that tables show: the shown verdict over all samples."""
    return mean_of(float(right) for right in run.verdicts().values())


def state(entry: Entry) -> str:
    """What a table says of a row that is not finished: "600 of 1000", "failed", ...; "done" of one that is."""
    if entry.run is None:
        return TIMED_ONLY
    return entry.run.detail if entry.run.state in (PARTIAL, EMPTY) and entry.run.detail else entry.run.state


def main_rows(runs: Sequence[Run], defaults: Mapping[str, Mapping[str, Any]] | None = None) -> pd.DataFrame:
    """The main table: a row a setting, MAIN_COLUMNS and STATE_COLUMNS. What is not known is NaN, never 0.

    A row whose state is not "done" has no figures but those of its timing.

    Args:
        runs: as `read_runs` found them.
        defaults: settings by method name; sweeps away from them are left to the sweep table (see `main_entries`).
    """
    return frame(main_entries(entries(runs), defaults))


def frame(rows: Sequence[Entry]) -> pd.DataFrame:
    """MAIN_COLUMNS and STATE_COLUMNS of the entries."""
    table = pd.DataFrame([_figures(entry) for entry in rows], columns=[*MAIN_COLUMNS, *STATE_COLUMNS])
    numbers = [*MAIN_COLUMNS[5:], "speedup_from_parallel"]
    return table.astype(dict.fromkeys(numbers, "float64")).astype({"n": "Int64"})


def _figures(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": entry.model,
        "benchmark": entry.benchmark,
        "method": entry.method,
        "decoding": entry.decoding,
        "state": state(entry),
    }
    if entry.timing:
        row |= _timed(entry)
    if run := entry.scored:
        shown, cost = accuracy(run), run.figures
        row |= {"n": shown.n, "accuracy": shown.mean, "accuracy_se": shown.se}
        row |= {key: getattr(cost, key) for key in ("recompute_ratio", "refresh_rate", "tokens_per_forward")}
        for key in ("tokens_per_second", "decision_share"):
            row.setdefault(key, getattr(cost, key))
    elif entry.run is not None:
        row["n"] = len(entry.run.samples)
    return row


def _timed(entry: Entry) -> dict[str, Any]:
    assert entry.timing
    values, found = entry.timing.row.values, entry.speedup
    row = {
        "tokens_per_second": ratio_of_sums(values["tokens"], values["seconds"]),
        "decision_share": ratio_of_sums(values["decision_seconds"], values["seconds"]),
        "recompute_ratio": ratio_of_sums(values["rows_computed"], values["rows_total"]),
        "refresh_rate": ratio_of_sums(values["refreshes"], values["nfe"]),
        "tokens_per_forward": ratio_of_sums(values["tokens"], values["nfe"]),
    }
    if isinstance(found, Speedup):
        row |= _interval(found.total)
        row |= {"speedup_from_caching": found.caching.value, "speedup_from_parallel": found.parallel.value}
    elif found:
        row |= _interval(found)
    return row


def _interval(ratio: Ratio) -> dict[str, float | None]:
    return {"speedup": ratio.value, "speedup_low": ratio.low, "speedup_high": ratio.high}


# -- accuracy --------------------------------------------------------------------------------------------------------


def accuracy_rows(rows: Sequence[Entry]) -> pd.DataFrame:
    """Every verdict side by side, micro and macro means, and the exact McNemar test against the reference.

    `p` is over the samples that both have (`n_paired`); `only_reference` and `only_method` count those that one of the
    two alone got right.
    """
    table = []
    for entry in rows:
        if not (run := entry.scored):
            continue
        test, paired, _ = against(entry, reference_of(rows, entry.group))
        shown = accuracy(run)
        others = {name: value["mean"] for name, value in run.scores["accuracy"].items() if name != run.shown}
        groups = {kind: (run.scores.get(kind) or {}).get("mean") for kind in ("micro", "macro")}
        table.append(
            {"model": entry.model, "benchmark": entry.benchmark, "method": entry.method, "decoding": entry.decoding}
            | {"n": shown.n, "verdict": run.shown, "accuracy": shown.mean, "accuracy_se": shown.se}
            | {"other_verdicts": ", ".join(f"{name} {100 * value:.1f} %" for name, value in others.items())}
            | groups
            | {"n_paired": paired if test else None}
            | {"only_reference": test and test.only_first, "only_method": test and test.only_second}
            | {"p": test.p if test else None, "empty": run.figures.empty, "truncated": run.figures.truncated}
        )
    columns = ["model", "benchmark", "method", "decoding", "n", "verdict", "accuracy", "accuracy_se", "other_verdicts"]
    columns += ["micro", "macro", "n_paired", "only_reference", "only_method", "p", "empty", "truncated"]
    frame = pd.DataFrame(table, columns=columns)
    counts = ["n", "n_paired", "only_reference", "only_method", "empty", "truncated"]
    return frame.astype(dict.fromkeys(counts, "Int64")).astype(dict.fromkeys(("micro", "macro", "p"), "float64"))


# -- where the time goes ---------------------------------------------------------------------------------------------


def total(value: Any) -> float:
    """Seconds over all prompts, recorded as one number or as one a prompt."""
    return math.fsum(value) if isinstance(value, list) else float(value)


def overhead_rows(rows: Sequence[Entry]) -> pd.DataFrame:
    """Decision time of every timed row: its share of generation time, part by part, and milliseconds a step."""
    timed = [(entry, entry.timing) for entry in rows if entry.timing]
    parts = list(dict.fromkeys(part for _, timing in timed for part in timing.row.decision_parts))
    table = []
    for entry, timing in timed:
        values = timing.row.values
        spent = math.fsum(values["decision_seconds"])
        table.append(
            {"model": entry.model, "benchmark": entry.benchmark, "method": entry.method, "decoding": entry.decoding}
            | {"prompts": len(timing.speed.prompts)}
            | {"decision_share": ratio_of_sums([spent], values["seconds"])}
            | {
                f"{part}_share": ratio_of_sums([total(timing.row.decision_parts.get(part, 0.0))], values["seconds"])
                for part in parts
            }
            | {
                "decision_ms_per_step": ratio_of_sums([1000 * spent], values["nfe"]),
                "ms_per_step": ratio_of_sums([1000 * math.fsum(values["seconds"])], values["nfe"]),
                "gflops_per_token": ratio_of_sums([math.fsum(values["flops"]) / 1e9], values["tokens"]),
                "peak_memory_mib": timing.row.peak_memory_bytes and timing.row.peak_memory_bytes / 2**20,
            }
        )
    columns = ["model", "benchmark", "method", "decoding", "prompts", "decision_share", *(f"{p}_share" for p in parts)]
    columns += ["decision_ms_per_step", "ms_per_step", "gflops_per_token", "peak_memory_mib"]
    return pd.DataFrame(table, columns=columns).astype(dict.fromkeys(columns[5:], "float64"))


def phase_rows(rows: Sequence[Entry]) -> pd.DataFrame:
    """Milliseconds a prompt of every timed row, a column a phase."""
    timed = [(entry, entry.timing) for entry in rows if entry.timing]
    phases = list(dict.fromkeys(phase for _, timing in timed for phase in timing.row.phase_seconds))
    table = [
        {"model": entry.model, "benchmark": entry.benchmark, "method": entry.method, "decoding": entry.decoding}
        | {p: 1000 * total(timing.row.phase_seconds.get(p, 0.0)) / len(timing.speed.prompts) for p in phases}
        for entry, timing in timed
    ]
    return pd.DataFrame(table, columns=["model", "benchmark", "method", "decoding", *phases])


# -- sweeps ----------------------------------------------------------------------------------------------------------


AXES = ("tau", "k")  # of EntropyCache


def sweep_rows(found: Sequence[Entry], method: str = "entropycache", axes: Sequence[str] = AXES) -> pd.DataFrame:
    """The rows of a method that was run with more than one setting of the axes, with the axes as columns.

    Rows of one sweep are on the same number of samples: the number that most of its rows have. Rows that are not done
    are kept, with their state.
    """
    chosen = together(
        [
            entry
            for entry in found
            if base(entry.method) == method
            and all(isinstance(entry.method_config.get(axis), int | float) for axis in axes)
        ]
    )
    table = frame(chosen)
    for axis in axes:
        table[axis] = [entry.method_config[axis] for entry in chosen]
    table["decoding"] = [entry.decoding for entry in chosen]
    kept = [part for _, part in table.groupby(["model", "benchmark", "decoding"], sort=False) if len(part) > 1]
    if not kept:
        return table.iloc[:0]
    parts = []
    for part in kept:
        finished = part[part["state"].isin([DONE, TIMED_ONLY])]
        usual = Counter(finished["n"].dropna().tolist()).most_common(1)
        same = part["n"].isna() | (part["n"] == usual[0][0]) if usual else part["n"].isna()
        parts.append(part[same | ~part["state"].isin([DONE])])
    order = ["model", "benchmark", "method", "decoding", *axes, *MAIN_COLUMNS[4:], *STATE_COLUMNS]
    return pd.concat(parts)[order].sort_values(["model", "benchmark", "decoding", *axes], kind="stable")
