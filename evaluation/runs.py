"""Reads finished, stopped and failed runs back, for scoring and reports. Damage in one never hides the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from evaluation.files import StoreError, read_json, read_lines
from evaluation.store import FIXED, check_finished, generation_config, run_key, sample_indices

Status = Literal["done", "partial", "failed", "empty", "damaged"]


@dataclass(frozen=True)
class LoadedRun:
    """One run's folder as it was found. Only a `done` run belongs in a table without a star."""

    folder: Path
    status: Status
    note: str
    """What to tell a reader: "600 of 1000" samples, the error of a failed run, the damage; "" for a done one."""

    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Ordered by index; what could be read of them, whatever the status."""

    scores: Mapping[str, Any] | None = None
    """None: not scored yet, or what is there cannot be read. Scoring makes them from the samples, at any time."""

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def conditions(self) -> dict[str, Any]:
        """All that two runs must share to be compared: the settings, and what they met (device, data, prompts)."""
        return generation_config(self.config) | {key: self.manifest[key] for key in FIXED if key in self.manifest}


def load_run(folder: Path) -> LoadedRun:
    """Reads one run. Never raises for what the folder holds: damage is a status, with a note that names the file."""
    parts: dict[str, Any] = {}
    damage: list[str] = []
    for name, read in _READERS.items():
        try:
            parts[name] = read(folder)
        except StoreError as error:
            damage.append(str(error))
    if damage:
        return LoadedRun(folder, "damaged", "; ".join(damage), **parts)
    status, note = _status(folder, len(parts["samples"]), parts["manifest"].get("samples"))
    return LoadedRun(folder, status, note, **parts)


def _status(folder: Path, found: int, wanted: int | None) -> tuple[Status, str]:
    count = f"{found} of {wanted}" if wanted is not None else ""
    if (folder / "DONE").exists():
        try:
            check_finished(folder)
        except StoreError as error:
            return "damaged", str(error)
        return "done", ""
    if (folder / "FAILED").is_file():
        reason = (folder / "FAILED").read_text(encoding="utf-8", errors="replace").strip()
        return "failed", f"{reason} (after {count} samples)" if found else reason
    return ("partial", count) if found else ("empty", count)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StoreError(f"{path} cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(config, dict):
        raise StoreError(f"{path} holds no configuration")
    return config


def _samples(folder: Path) -> list[dict[str, Any]]:
    path = folder / "samples.jsonl"
    samples = read_lines(path)[0]
    sample_indices(path, samples)
    return sorted(samples, key=lambda sample: sample["index"])


def _optional(folder: Path, name: str) -> dict[str, Any] | None:
    return read_json(folder / name) if (folder / name).exists() else None


def read_scores(folder: Path) -> dict[str, Any] | None:
    """A run's scores; None where there are none, or none that can be read."""
    try:
        return _optional(folder, "scores.json")
    except StoreError:
        return None


_READERS = {
    "config": _config,
    "manifest": lambda folder: _optional(folder, "manifest.json") or {},
    "samples": _samples,
    "scores": read_scores,
}


def _matches(config: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    for key, wanted in filters.items():
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value not in (wanted if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)):
            return False
    return True


def load_runs(root: Path | str, filters: Mapping[str, Any] | None = None) -> list[LoadedRun]:
    """All runs under a folder, by benchmark, model, method and key.

    Args:
        root: the store's folder.
        filters: dotted keys of the configuration with the value, or the values, that a run must have:
            {"benchmark.name": "gsm8k", "method.tau": [0.1, 0.5]}. A run whose configuration is lost or unreadable is
            always returned, so that no filter hides damage.

    Raises:
        StoreError: there is no such folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise StoreError(f"{root} is not a folder of runs: nothing has been run there yet, or results=... is another")
    runs = [load_run(folder) for folder in sorted(root.glob("*/*/*/*")) if folder.is_dir()]
    return [run for run in runs if not run.config or _matches(run.config, filters or {})]


def newest(runs: list[LoadedRun]) -> list[LoadedRun]:
    """Of runs of one configuration, made by different versions of the code, the one begun last; order is kept."""

    def begun(run: LoadedRun) -> str:
        sessions = run.manifest.get("sessions") or [{}]
        return str(sessions[0].get("started", ""))

    best: dict[str, LoadedRun] = {}
    for run in runs:
        identity = run_key(run.config, code="any") if run.config else str(run.folder)
        if identity not in best or begun(run) >= begun(best[identity]):
            best[identity] = run
    kept = {run.folder for run in best.values()}
    return [run for run in runs if run.folder in kept]
