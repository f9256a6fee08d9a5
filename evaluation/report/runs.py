"""Run directories as a report sees them. What is wrong with one becomes its state; the others are read all the same.

`evaluation.runs` reads the folders; here a run is also checked for what tables need of it: scores of these very
samples, and, where it is a measurement of speed, its rows.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluation.files import StoreError, read_json
from evaluation.runs import LoadedRun, load_runs
from evaluation.statistics import Figures, figures

SPEED = "speed"  # the folder that holds paired timings, where other runs have their method's name
TIMED = ("seconds", "tokens", "nfe", "rows_computed", "rows_total", "refreshes", "flops", "decision_seconds")
NAMES = {"name", "_target_"}  # entries of a group that are no settings

REFERENCE = "full_recompute"  # what the others are held against
DONE, PARTIAL, FAILED, EMPTY, DAMAGED = "done", "partial", "failed", "empty", "damaged"
UNSCORED = "not scored"


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method or of a decoding: its configuration without names."""
    return {key: value for key, value in group.items() if key not in NAMES}


def canonical(group: Mapping[str, Any]) -> str:
    """The settings as one text, equal for equal settings; 1 and 1.0 are the same number."""
    plain = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in settings(group).items()}
    return json.dumps(plain, sort_keys=True, default=str)


@dataclass(frozen=True)
class SpeedRow:
    """One setting's timings, a value a prompt; all rows of a measurement share its prompts, in one order."""

    label: str
    method: str
    method_config: Mapping[str, Any]
    decoding: str
    decoding_config: Mapping[str, Any]
    values: Mapping[str, list[float]]  # seconds, tokens, nfe, decision_seconds, rows_computed, ...
    decision_parts: Mapping[str, float]  # seconds over all prompts
    phase_seconds: Mapping[str, float]
    peak_memory_bytes: int | None

    @property
    def setting(self) -> tuple[str, str, str]:
        return self.method, canonical(self.method_config), canonical(self.decoding_config)


@dataclass(frozen=True)
class Speed:
    """A paired measurement: every row on the same prompts, in turn, in one process."""

    prompts: list[str]
    reference: str
    rows: tuple[SpeedRow, ...]

    @property
    def reference_row(self) -> SpeedRow:
        return next(row for row in self.rows if row.label == self.reference)


@dataclass(frozen=True)
class Run:
    """One run directory. `state` is one of the states above; `detail` says what is wrong, where something is."""

    loaded: LoadedRun
    path: str  # relative to the root of all runs, with forward slashes: <benchmark>/<model>/<method>/<key>
    state: str
    detail: str
    speed: Speed | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        return self.loaded.config

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.loaded.manifest

    @property
    def samples(self) -> list[dict[str, Any]]:
        return self.loaded.samples

    def _name(self, group: str, position: int) -> str:
        chosen = self.config.get(group)
        name = chosen.get("name") if isinstance(chosen, Mapping) else None
        return str(name or self.path.split("/")[position])

    @property
    def benchmark(self) -> str:
        return self._name("benchmark", 0)

    @property
    def model(self) -> str:
        return self._name("model", 1)

    @property
    def method(self) -> str:
        return self._name("method", 2)

    @property
    def is_speed(self) -> bool:
        return self.path.split("/")[2] == SPEED

    @property
    def method_config(self) -> Mapping[str, Any]:
        return self.config.get("method") or {}

    @property
    def decoding_config(self) -> Mapping[str, Any]:
        return self.config.get("decoding") or {}

    @property
    def decoding(self) -> str:
        return str(self.decoding_config.get("name") or self.decoding_config.get("rule") or "–")

    @property
    def setting(self) -> tuple[str, str, str]:
        return self.method, canonical(self.method_config), canonical(self.decoding_config)

    @property
    def total(self) -> int:
        """Samples that the run is to have."""
        return int(self.manifest.get("samples") or 0)

    @property
    def session(self) -> Mapping[str, Any]:
        """What is on record of the last session that worked on the run: its start, its command, the code's version."""
        return (self.manifest.get("sessions") or [{}])[-1]

    @property
    def started(self) -> str:
        """When its last session began, ISO 8601; "" if unknown."""
        return str(self.session.get("started", ""))

    @property
    def command(self) -> str:
        """The command line that made the run, to be given in the checkout; "" if unknown."""
        command = str(self.session.get("command", ""))
        return f"python scripts/{command}" if command else ""

    @cached_property
    def figures(self) -> Figures:
        """What the run's samples cost. ValueError for a run without samples."""
        return figures(self.samples)

    @property
    def scores(self) -> Mapping[str, Any]:
        """The content of scores.json; only a run that is done is sure to have it."""
        return self.loaded.scores or {}

    @property
    def shown(self) -> str:
        """The verdict that tables show."""
        return str(self.scores["shown"])

    def verdicts(self) -> dict[str, bool]:
        """Whether the shown verdict holds each answer right, by sample id."""
        return {score["id"]: bool(score[self.shown]["correct"]) for score in self.scores["samples"]}


def read_runs(
    root: Path | str,
    *,
    models: Collection[str] = (),
    benchmarks: Collection[str] = (),
    methods: Collection[str] = (),
    folders: Collection[Path] | None = None,
) -> list[Run]:
    """Every run under a folder, in the order of its path; an empty filter lets everything through.

    `folders`, where given, are the only runs that are read.

    A measurement of speed is kept whatever its methods, and so is full recompute: the others are held against it, and
    rows are filtered later.

    Raises:
        StoreError: there is no such folder.
        ValueError: a filter names what no run has.
    """
    root = Path(root)
    runs = [_checked(loaded, loaded.folder.relative_to(root).as_posix()) for loaded in load_runs(root)]
    for name, wanted in (("model", models), ("benchmark", benchmarks), ("method", methods)):
        known = {str(getattr(run, name)) for run in runs if not run.is_speed or name != "method"}
        if name == "method":
            known |= {row.method for run in runs if run.speed for row in run.speed.rows}
        for unknown in (one for one in wanted if one not in known):
            raise ValueError(f"{name}s: no run under {root} is of {unknown}; there are {', '.join(sorted(known))}")
    only = None if folders is None else {folder.resolve() for folder in folders}
    return [
        run
        for run in runs
        if (only is None or run.loaded.folder.resolve() in only)
        and (not models or run.model in models)
        and (not benchmarks or run.benchmark in benchmarks)
        and (not methods or run.is_speed or run.method in (*methods, REFERENCE))
    ]


def _checked(loaded: LoadedRun, path: str) -> Run:
    note = loaded.note.replace(f"{loaded.folder}/", "")
    run = Run(loaded, path, loaded.status, " ".join(note.split()))
    try:  # what a record lacks shows here, not in the middle of a table
        _ = run.setting, run.total, run.started, run.command, run.decoding, run.loaded.conditions
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        bare = LoadedRun(loaded.folder, "damaged", "")  # nothing on record of it can be relied on
        return Run(bare, path, DAMAGED, f"config.yaml or manifest.json is not as it should be: {_said(error)}")
    if run.state != DONE:
        return run
    try:
        if run.is_speed:
            return Run(loaded, path, DONE, "", read_speed(loaded.folder / "speed.json"))
        if loaded.scores is None:
            unread = "scores.json cannot be read; " if (loaded.folder / "scores.json").exists() else ""
            advice = f"{unread}score it with: python scripts/score.py {loaded.folder.name}"
            return Run(loaded, path, UNSCORED, advice)
        if [score["id"] for score in run.scores["samples"]] != [sample["id"] for sample in run.samples]:
            raise StoreError("scores.json is of other samples than samples.jsonl: score the run again")
        _ = run.verdicts(), run.figures, run.scores["accuracy"][run.shown], run.scores["subtasks"]
        means = [*run.scores["accuracy"].values(), *filter(None, (run.scores[kind] for kind in ("micro", "macro")))]
        _ = [1.0 * mean[key] for mean in means for key in ("mean", "n")]
    except (StoreError, ValueError) as error:
        return Run(loaded, path, DAMAGED, " ".join(str(error).split()))
    except (KeyError, TypeError, AttributeError) as error:
        return Run(loaded, path, DAMAGED, f"a record is not of the form it should have: {_said(error)}")
    return run


def _said(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())}"


def read_speed(path: Path) -> Speed:
    """A paired measurement.

    Raises:
        StoreError: the file is missing or no JSON, its reference is not among its rows, or a row lacks a prompt.
    """
    record = read_json(path)
    prompts = [str(prompt) for prompt in record["prompts"]]
    rows = tuple(_speed_row(row, len(prompts)) for row in record["rows"])
    labels = [row.label for row in rows]
    if record["reference"] not in labels:
        raise StoreError(f"speed.json: the reference {record['reference']!r} is none of the rows {labels}")
    return Speed(prompts, record["reference"], rows)


def _speed_row(row: Mapping[str, Any], prompts: int) -> SpeedRow:
    values = {name: list(value) for name, value in row.items() if isinstance(value, list)}
    uneven = [name for name in dict.fromkeys((*TIMED, *values)) if len(values.get(name, ())) != prompts]
    if not all(seconds > 0 for seconds in values.get("seconds", ())):
        raise StoreError(f"speed.json, row {row['label']!r}: seconds must all be above 0")
    if uneven or not prompts:
        raise StoreError(f"speed.json, row {row['label']!r}: {uneven} not given for each of the {prompts} prompts")
    return SpeedRow(
        label=row["label"],
        method=row["method"],
        method_config=row["method_config"],
        decoding=row["decoding"],
        decoding_config=row["decoding_config"],
        values=values,
        decision_parts=row["decision_parts"],
        phase_seconds=row["phase_seconds"],
        peak_memory_bytes=row["peak_memory_bytes"],
    )
