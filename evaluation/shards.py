"""One run made by several workers: shard i of N makes the samples whose index is i modulo N, in files of its own.

    <results>/shards/<benchmark>/<model>/<method>/<key>/<i>-of-<N>/

The run's key does not know of shards: the merged run is the run that one worker would have made, sample for sample. A
shard is itself a run of the store (locked, resumed, whole or not), so a killed one is taken up again. Timings are not
for comparison where workers share a machine; speed is measured by `scripts/speed.py`, which is never sharded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation import files
from evaluation.files import StoreError
from evaluation.runs import load_run
from evaluation.store import Config, Run, RunStore


class Shard(Run):
    """The samples `number`, `number` + `shards`, ... of a run."""

    def __init__(self, results: Path, config: Config, manifest: Mapping[str, Any], number: int, shards: int) -> None:
        self.number, self.shards = number, shards
        folder = shard_folder(results, config, number, shards)
        super().__init__(folder, config, {**manifest, "shard": number, "shards": shards})

    @property
    def missing(self) -> list[int]:
        """Indices of the shard's samples yet to be made."""
        return [index for index in super().missing if index % self.shards == self.number]


def shard_folder(results: Path, config: Config, number: int, shards: int) -> Path:
    """Where a shard of the run of a configuration lies. Raises ValueError if there is no such shard."""
    if shards < 1:
        raise ValueError(f"shards={shards} must be 1 or more")
    if not 0 <= number < shards:
        raise ValueError(f"shard={number} is none of shards={shards}; 0 to {shards - 1} would do")
    return RunStore(results / "shards").folder(config) / f"{number}-of-{shards}"


def unfinished(results: Path, config: Config, shards: int) -> list[int]:
    """The shards that are not done, or not as they were when they were, lowest first."""
    folders = [shard_folder(results, config, number, shards) for number in range(shards)]
    return [number for number, folder in enumerate(folders) if load_run(folder).status != "done"]


def merge(results: Path, config: Config, manifest: Mapping[str, Any], shards: int) -> Path:
    """Make the run of a configuration from its shards, and mark it as done; returns its folder. Done once.

    Raises:
        StoreError: shards are missing or were made under other conditions, and which; or the run cannot be written.
    """
    store = RunStore(results / "runs")
    if (store.folder(config) / "DONE").exists():
        return store.folder(config)
    if missing := unfinished(results, config, shards):
        named = ", ".join(map(str, missing))
        raise StoreError(
            f"{shard_folder(results, config, 0, shards).parent}: of {shards} shards these are missing: {named}; "
            f"run again with shards={shards} and shard={named}"
        )
    with store.open(config, {**manifest, "shards": shards}) as run:
        for number in range(shards):
            with Shard(results, config, manifest, number, shards) as shard:
                steps = step_records(shard.folder / "steps.parquet")
                wanted = set(run.missing)
                for sample in shard.samples:
                    if sample["index"] in wanted:
                        run.append(sample, steps.get(sample["index"]))
        run.finish()
    return run.folder


def step_records(path: Path) -> dict[int, list[dict[str, Any]]]:
    """The step records of a traced shard by sample; none where there was no trace."""
    if not path.exists():
        return {}
    import pyarrow.parquet

    with files.writing(path):
        rows = pyarrow.parquet.read_table(path).to_pylist()
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:  # ordered by sample and step, as Run.finish wrote them
        index, _ = row.pop("index"), row.pop("step")
        found.setdefault(index, []).append(row)
    return found
