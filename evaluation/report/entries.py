"""The rows of every table: each setting's scored run and its timings, brought together.

A setting is a method with its settings and a decoding with its own, on one model and one benchmark. Runs of one setting
that stand beside each other (a smaller `limit`, older code) are not averaged: the largest finished one counts, the
latest of equals, and the others are named. Rows of one table are timed together where they can be (`together`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from evaluation import statistics
from evaluation.comparison import IncomparableError, comparable
from evaluation.report.runs import DONE, REFERENCE, Run, Speed, SpeedRow, canonical, settings
from evaluation.report.style import base, benchmark_rank, rank
from evaluation.statistics import McNemar, Ratio, Speedup, mcnemar, paired_ratio

# What may differ between a method and the reference beside the method itself: the commit rule, which is what "parallel
# decoding" means and is split off the speedup, and the window with what belongs to it alone (Elastic-Cache slides,
# d2Cache weighs the whole canvas). Two block lengths may not. The attention path follows from the method: one that
# reads the weights has them written out. A sequence's tokens depend neither on how many are packed together nor on
# whether they are watched.
COMMIT_RULE = ("rule", "steps", "threshold", "factor", "confidence")
FREE = ("method", *(f"decoding.{key}" for key in ("name", "rule", "steps", "threshold", "factor")))
FREE += ("decoding.window", "decoding.window_length", "decoding.certainty_sigma")
FREE += ("attention", "limit", "benchmark.count", "samples", "batch_size", "trace")


@dataclass(frozen=True)
class Timing:
    """A setting's place in a paired measurement."""

    run: Run
    speed: Speed
    row: SpeedRow

    @property
    def reference(self) -> SpeedRow:
        return self.speed.reference_row

    @property
    def same_rule(self) -> SpeedRow | None:
        """Full recompute with this row's commit rule, and its window too if that was measured; None if neither was."""
        full = [row for row in self.speed.rows if row.method == REFERENCE]
        mine = self.row.decoding_config
        exact = (row for row in full if canonical(row.decoding_config) == canonical(mine))
        alike = (row for row in full if all(row.decoding_config.get(key) == mine.get(key) for key in COMMIT_RULE))
        return next(exact, None) or next(alike, None)


@dataclass(frozen=True)
class Entry:
    """One row: `run` may be unfinished, failed or damaged; without it the setting was timed but not scored."""

    model: str
    benchmark: str
    method: str  # label: the name, and the settings that tell it from the other rows of its method
    decoding: str
    method_config: Mapping[str, Any]
    decoding_config: Mapping[str, Any]
    run: Run | None = None
    timing: Timing | None = None
    notes: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()  # all that there are of it; `timing` is one of them

    @property
    def group(self) -> tuple[str, str]:
        return self.model, self.benchmark

    @property
    def done(self) -> bool:
        return self.run is None or self.run.state == DONE

    @property
    def scored(self) -> Run | None:
        """The run, if it is finished and scored."""
        return self.run if self.run is not None and self.run.state == DONE else None

    @cached_property
    def speedup(self) -> Speedup | Ratio | None:
        """Against the reference of the measurement; a bare Ratio where nothing splits it."""
        if self.timing is None:
            return None
        one, row, same = self.timing.reference, self.timing.row, self.timing.same_rule
        if same is None:
            return paired_ratio(one.values["seconds"], row.values["seconds"])
        return statistics.speedup(one.values["seconds"], same.values["seconds"], row.values["seconds"])

    @property
    def total_speedup(self) -> Ratio | None:
        return self.speedup.total if isinstance(self.speedup, Speedup) else self.speedup


def one_token(decoding: Mapping[str, Any]) -> bool:
    """Whether a decoding commits one token a step: `top_n` in as many steps as the canvas has rows."""
    steps = decoding.get("steps")
    return decoding.get("rule") == "top_n" and (steps is None or steps == decoding.get("gen_length"))


def is_reference(entry: Entry) -> bool:
    """Whether a row is what the others are held against: full recompute, one token a step."""
    decoding = entry.decoding_config
    return base(entry.method) == REFERENCE and one_token(decoding) and not decoding.get("certainty_sigma")


def reference_of(entries: Iterable[Entry], group: tuple[str, str]) -> Entry | None:
    """The row of a group that the others are held against, if it is scored."""
    return next((entry for entry in entries if entry.group == group and entry.scored and is_reference(entry)), None)


def against(entry: Entry, reference: Entry | None) -> tuple[McNemar | None, int, str]:
    """McNemar of the reference and a row on the samples both have, the number of these, and why there is none."""
    if reference is None or reference.run is None or entry.scored is None or entry.run is None:
        return None, 0, ""
    if entry.run is reference.run:
        return None, 0, ""
    try:
        free = _free(reference.run, entry.run)
        if reference.run.total != entry.run.total:  # fewer questions of the same data: another hash over all prompts
            free = (*free, "prompts_sha256")
        comparable(reference.run.loaded.conditions, entry.run.loaded.conditions, free=free)
    except IncomparableError as error:
        return None, 0, str(error)
    first, second = reference.run.verdicts(), entry.run.verdicts()
    common = [sample for sample in first if sample in second]
    return mcnemar([first[i] for i in common], [second[i] for i in common]), len(common), ""


def entries(runs: Sequence[Run]) -> list[Entry]:
    """All rows there are, in the order of tables: by model, benchmark, method, settings, one-token decoding first."""
    timings: dict[tuple, list[Timing]] = {}
    scored: dict[tuple, list[Run]] = {}
    for run in runs:
        if run.speed:
            for row in run.speed.rows:
                timings.setdefault((run.model, run.benchmark, row.setting), []).append(Timing(run, run.speed, row))
        elif not run.is_speed:
            scored.setdefault((run.model, run.benchmark, run.setting), []).append(run)
    found = [_entry(scored.get(key, []), timings.get(key, [])) for key in dict.fromkeys([*scored, *timings])]
    return sorted(labelled(found), key=_order)


def _entry(runs: Sequence[Run], timings: Sequence[Timing]) -> Entry:
    run = max(runs, key=lambda run: (run.state == DONE, run.total, run.started, run.path), default=None)
    others = [other for other in runs if other is not run]
    notes = [f"not shown: {other.path}, of the same settings as {run.path}" for other in others if run]
    allowed = []
    for timing in timings:
        try:
            _check_timing(run, timing)
            allowed.append(timing)
        except IncomparableError as error:
            notes.append(f"speedup refused, {timing.run.path}, row {timing.row.label!r}: {error}")
    place, source = run or timings[0].run, run or timings[0].row
    return Entry(
        place.model,
        place.benchmark,
        source.method,
        source.decoding,
        source.method_config,
        source.decoding_config,
        run,
        max(allowed, key=_weight, default=None),
        tuple(notes),
        tuple(allowed),
    )


def _weight(timing: Timing) -> tuple:
    return len(timing.speed.prompts), timing.run.started, timing.run.path


def together(rows: Sequence[Entry]) -> list[Entry]:
    """The rows of one table, each with the timing that has most of them in it; of equals the largest, then the latest.

    So rows stand beside each other that answered the same prompts in turn, and a setting that stands in two tables,
    the methods' and a sweep's, has in each the timing of its neighbours.
    """
    neighbours = Counter(timing.run.path for entry in rows for timing in entry.timings)

    def best(entry: Entry) -> Timing | None:
        return max(entry.timings, key=lambda one: (neighbours[one.run.path], *_weight(one)), default=None)

    return [replace(entry, timing=best(entry)) for entry in rows]


def _check_timing(run: Run | None, timing: Timing) -> None:
    one, row = timing.reference, timing.row
    comparable({"decoding": one.decoding_config}, {"decoding": row.decoding_config}, free=_free(one, row))
    if run is not None and run.state == DONE:  # the measurement has prompts of its own, and its rows are its methods
        shared = (timing.run.loaded.conditions.keys() & run.loaded.conditions.keys()) - {"decoding", "prompts_sha256"}
        first, second = ({key: one.loaded.conditions[key] for key in sorted(shared)} for one in (timing.run, run))
        comparable(first, second, free=FREE)


def _free(one: Run | SpeedRow, other: Run | SpeedRow) -> tuple[str, ...]:
    """FREE, and the block length where the two have windows of another kind."""
    same_kind = one.decoding_config.get("window") == other.decoding_config.get("window")
    return FREE if same_kind else (*FREE, "decoding.block_length")


def _order(entry: Entry) -> tuple:
    place = entry.model, benchmark_rank(entry.benchmark), rank(entry.method)[0], entry.method.partition("(")[0]
    numbers = [(key, value) for key, value in settings(entry.method_config).items() if isinstance(value, int | float)]
    return *place, numbers, not one_token(entry.decoding_config), entry.decoding


def labelled(found: Sequence[Entry]) -> list[Entry]:
    """The entries, each method and decoding labelled with the settings in which the rows of its name differ."""
    return [
        replace(
            entry,
            method=_label(entry, found, lambda e: e.method.partition("(")[0], lambda e: e.method_config),
            decoding=_label(entry, found, lambda e: e.decoding.partition("(")[0], lambda e: e.decoding_config),
        )
        for entry in found
    ]


def _label(entry: Entry, found: Sequence[Entry], name: Any, config: Any) -> str:
    peers = [other for other in found if other.group == entry.group and name(other) == name(entry)]
    mine = settings(config(entry))
    differing = [key for key in mine if any(settings(config(other)).get(key) != mine[key] for other in peers)]
    shown = ", ".join(f"{key}={mine[key]}" for key in differing)
    return f"{name(entry)}({shown})" if shown else name(entry)


def main_entries(found: Sequence[Entry], defaults: Mapping[str, Mapping[str, Any]] | None) -> list[Entry]:
    """The rows of the main table: of each method its default settings, where it was run with them.

    Args:
        found: all rows.
        defaults: settings by method name, as far as they are to be compared; None lets every row through.
    """

    def is_default(entry: Entry) -> bool:
        wanted = (defaults or {}).get(entry.method.partition("(")[0], {})
        mine = settings(entry.method_config)
        return all(key not in mine or mine[key] == value for key, value in settings(wanted).items())

    def peers(entry: Entry) -> tuple:
        return entry.group, entry.method.partition("(")[0]

    with_default = {peers(entry) for entry in found if is_default(entry)}
    shown = [entry for entry in found if is_default(entry) or peers(entry) not in with_default]
    return labelled(together(shown))
