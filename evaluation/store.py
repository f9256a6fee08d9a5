"""The run store: what generation leaves behind, and how scoring and reporting find it again.

    <root>/<benchmark>/<model>/<method>/<key>/
        config.yaml      the resolved configuration
        manifest.json    code, versions, device, hashes of data and prompts; one entry a session at work on the run
        samples.jsonl    one line a sample, on disk before `append` returns
        steps.jsonl      step records while a traced run is under way; steps.parquet once it is finished
        scores.json      written by scoring, at any time, from samples.jsonl alone
        DONE or FAILED   how it ended; a run with neither was stopped, and resumes with its missing samples

The key covers all that generation depends on, so a folder holds one run for good: a finished run is not run again, and
other code or settings make another folder. This module needs no torch, no lm-eval and no Hydra.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from evaluation import files
from evaluation.files import Lines, RunBusyError, StoreError
from evaluation.provenance import code_version, environment

Config = Mapping[str, Any]
Sample = Mapping[str, Any]

# Top-level keys that say where a run is written or how it is watched. All others count for its key.
UNKEYED = ("profile", "results", "experiment", "launcher", "progress")

# Fields of a sample that may differ between two runs of one configuration; the rest is the same to the byte.
TIMING_FIELDS = ("seconds", "decision_seconds", "decision_parts", "peak_memory_bytes")

# Entries of the manifest that no later session may change: the samples would not be of one kind.
FIXED = ("samples", "device", "dtype", "attention", "data_sha256", "prompts_sha256", "fewshot_sha256", "task_sha256")


def _plain(value: Any, where: str) -> Any:
    """The value as JSON knows it. 1.0 becomes 1: how a number was typed makes no other run of it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{where} is a {type(value).__name__}: a run's configuration holds plain values only")


def generation_config(config: Config) -> dict[str, Any]:
    """The part of a configuration that decides what is generated and how long it takes.

    Raises:
        TypeError: a value is not plain (a node of OmegaConf, a path, ...); the message names its key.
    """
    return {key: _plain(value, key) for key, value in config.items() if key not in UNKEYED}


def run_key(config: Config, code: str | None = None) -> str:
    """16 hex digits over the canonical JSON of `generation_config` and the code version (default: of these sources)."""
    canonical = json.dumps([generation_config(config), code or code_version()], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def strip_timing(sample: Sample) -> dict[str, Any]:
    """The sample without TIMING_FIELDS."""
    return {key: value for key, value in sample.items() if key not in TIMING_FIELDS}


def sample_indices(path: Path, samples: Sequence[Sample]) -> set[int]:
    """The indices of a run's samples. Raises StoreError, naming the file, if one has none, or that of another."""
    indices = {sample["index"] for sample in samples if isinstance(sample.get("index"), int)}
    if len(indices) < len(samples):
        raise StoreError(f"{path}: a sample has no index, or that of another; put it right, or delete the run")
    return indices


def write_scores(folder: Path, scores: Mapping[str, Any]) -> None:
    """Puts scores.json into a run's folder, in place of any that was there."""
    files.write_json(folder / "scores.json", scores)


def _folder_name(config: Config, group: str) -> str:
    chosen = config.get(group)
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{group}.name is missing: a run is filed under the names of benchmark, model and method")
    return "".join(c if c.isalnum() or c in "._-+" else "-" for c in name).strip(".-") or "unnamed"


class RunStore:
    """The runs under one folder."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, config: Config) -> Path:
        """Where the run of a configuration lies, whether or not it has begun."""
        names = [_folder_name(config, group) for group in ("benchmark", "model", "method")]
        return self.root.joinpath(*names, run_key(config))

    def open(self, config: Config, manifest: Mapping[str, Any]) -> "Run":
        """Begins a run, or takes it up where it stopped or failed; a finished one is handed back as `done`.

        Args:
            config: the resolved configuration; `benchmark`, `model` and `method` each with a `name`.
            manifest: `samples`, the number of samples the run is to have, and what else is to be on record: the FIXED
                entries (device and the hashes of data and prompts), seed, ... Code and versions are added here.

        Raises:
            RunBusyError: another process is writing the run.
            StoreError: the folder cannot be written, what it holds is damaged, or a FIXED entry is not as it was.
        """
        return Run(self.folder(config), config, manifest)

    def fail(self, config: Config, error: BaseException) -> Path:
        """Puts on record that the run of a configuration failed before it could begin, e.g. for want of its weights.

        Samples that are there already, and a run that is done or that another process is writing, are left alone.
        Returns the run's folder.
        """
        folder = self.folder(config)
        with suppress(RunBusyError), files.lock(folder):
            if not (folder / "DONE").exists():
                _write_config(folder, config)
                _write_failure(folder, error)
        return folder

    def clear_failure(self, config: Config) -> None:
        """Takes back what `fail` put on record of a run that had not begun."""
        folder = self.folder(config)
        if (folder / "FAILED").exists() and not (folder / "samples.jsonl").exists():
            shutil.rmtree(folder)


class Run:
    """One run, open for writing and locked against other processes; use it as a context manager.

    An exception that leaves the `with` block marks the run as failed; a stop from the keyboard leaves it to be resumed.
    """

    def __init__(self, folder: Path, config: Config, manifest: Mapping[str, Any]) -> None:
        self.folder, self.total = folder, int(manifest["samples"])
        self._samples: Lines | None = None
        self._steps: Lines | None = None
        self._lock = ExitStack()
        self.done = (folder / "DONE").exists()
        if not self.done:
            self._lock.enter_context(files.lock(folder))
            self.done = (folder / "DONE").exists()  # another process may have finished it just before it let go
        try:
            if self.done:
                check_finished(folder)
            record = self._check(manifest)
            if not self.done:
                self._begin(config, manifest, record)
        except BaseException:
            self.close()
            raise

    def _begin(self, config: Config, manifest: Mapping[str, Any], record: dict[str, Any]) -> None:
        for torn in self.folder.glob(".*.tmp"):  # of a final file, by a process that was killed
            torn.unlink()
        _write_config(self.folder, config)
        self._samples = Lines(self.folder / "samples.jsonl")
        self._present = sample_indices(self._samples.path, self._samples.records)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        sessions = [
            *record.get("sessions", []),
            {"started": now, "samples_before": len(self._present), **environment()},
        ]
        record |= {**manifest, "key": self.folder.name, "code_version": code_version(), "sessions": sessions}
        files.write_json(self.folder / "manifest.json", record)
        with files.writing(self.folder):
            (self.folder / "FAILED").unlink(missing_ok=True)

    def _check(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest of the sessions before; refuses to mix samples of another device, other data or prompts."""
        path = self.folder / "manifest.json"
        record = files.read_json(path) if path.exists() else {}
        for key in FIXED:
            if key in record and key in manifest and record[key] != manifest[key]:
                raise StoreError(
                    f"{path}: the run was begun with {key}={record[key]}, now it is {manifest[key]}; "
                    "put it back as it was, or delete the run to do it again"
                )
        return record

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The samples there are, by index."""
        found = self._samples.records if self._samples else files.read_lines(self.folder / "samples.jsonl")[0]
        return sorted(found, key=lambda sample: sample["index"])

    @property
    def missing(self) -> list[int]:
        """Indices of the samples yet to be made, lowest first; none if the run is done."""
        return [] if self.done else [index for index in range(self.total) if index not in self._present]

    def append(self, sample: Sample, steps: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Writes one sample, in whatever order they finish, and its step records if the run is traced.

        Raises:
            StoreError: it could not be written; all samples before it are safe.
            ValueError: its index is not among the missing ones.
        """
        index = sample["index"]
        if self._samples is None or index in self._present or not 0 <= index < self.total:
            raise ValueError(f"{self.folder}: sample {index} is not missing from this run of {self.total} samples")
        if steps is not None:  # first, so that no sample is without its steps
            self._steps = self._steps or Lines(self.folder / "steps.jsonl")
            self._steps.append({"index": index, "steps": list(steps)})
        self._samples.append(sample)
        self._present.add(index)

    def finish(self, scores: Mapping[str, Any] | None = None) -> None:
        """Marks the run as done: samples in order of index, steps as a table, scores if there are any yet.

        Raises:
            StoreError: samples are missing, or something could not be written; the run can be taken up again.
        """
        if not self.done:
            if missing := self.missing:
                raise StoreError(f"{self.folder}: {self.total - len(missing)} of {self.total} samples are there")
            content = b"".join(map(files.as_line, self.samples))
            with files.atomic(self.folder / "samples.jsonl") as temporary:
                temporary.write_bytes(content)
            self._finish_steps()
            digest = hashlib.sha256(content).hexdigest()
            files.write_json(self.folder / "DONE", {"samples": self.total, "samples_sha256": digest})
            self.done = True
            self.close()
        if scores is not None:
            write_scores(self.folder, scores)

    def _finish_steps(self) -> None:
        path = self.folder / "steps.jsonl"
        if not path.exists():
            return
        import pyarrow
        import pyarrow.parquet

        # a sample made again after a kill has its steps twice: the last count
        by_index = {record["index"]: record["steps"] for record in files.read_lines(path)[0]}
        rows = [
            {"index": index, "step": number, **step}
            for index in sorted(by_index)
            for number, step in enumerate(by_index[index])
        ]
        with files.atomic(self.folder / "steps.parquet") as temporary:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
        with files.writing(path):
            path.unlink()

    def fail(self, error: BaseException) -> None:
        """Marks the run as failed, with the error on one line; the next `open` takes it up again."""
        _write_failure(self.folder, error)

    def close(self) -> None:
        """Lets go of the run."""
        for lines in (self._samples, self._steps):
            if lines is not None:
                lines.close()
        self._samples = self._steps = None
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and not self.done:
                with suppress(StoreError):  # a full disk takes no FAILED either; the first error is the one to show
                    self.fail(error)
        finally:
            self.close()


def check_finished(folder: Path) -> None:
    """Raises StoreError where what a finished run holds is not what it was finished with."""
    for name in ("config.yaml", "manifest.json", "samples.jsonl"):
        if not (folder / name).is_file():
            raise StoreError(f"{folder / name} is gone, of a finished run; delete the run to do it again")
    path = folder / "samples.jsonl"
    expected = files.read_json(folder / "DONE").get("samples_sha256")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise StoreError(f"{path} is not as it was when the run was finished; delete the run to do it again")


def _write_config(folder: Path, config: Config) -> None:
    path = folder / "config.yaml"
    if not path.exists():
        plain = {key: _plain(value, key) for key, value in config.items()}
        files.write_text(path, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _write_failure(folder: Path, error: BaseException) -> None:
    files.write_text(folder / "FAILED", " ".join(f"{type(error).__name__}: {error}".split()) + "\n")
