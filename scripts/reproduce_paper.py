"""The paper's tables and plots for a profile: run what is missing, time it, write the report, print the table.

make reproduce-paper              the embedded profile: small checkpoints, CPU, no network
make reproduce-paper SMOKE=1      the same in minutes, with few questions
make reproduce-paper DRY_RUN=1    the plan alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from entry import CONF, EXPECTED, build, compose_run, entry_point, fail, fail_softly, plain
from omegaconf import DictConfig
from run import run
from speed import speed
from tqdm import tqdm

from evaluation.report import format_table, write_report
from evaluation.store import RunStore


@dataclass(frozen=True)
class Job:
    """One piece of work: its name, what does it (and returns its folder), and the configuration it is filed under."""

    name: str
    work: Callable[[], Path]
    config: Mapping[str, Any]


def main(cfg: DictConfig) -> None:
    config = plain(cfg)
    profile, results = config["profile"], Path(config["results"])
    if config["smoke"]:
        profile |= profile["smoke"] | {"name": f"{profile['name']}-smoke"}
    jobs = list(plan(profile, results, config["allow_code_execution"]))
    if config["dry_run"]:
        for job in jobs:
            build(job.config["decoding"])  # settings that mean nothing are refused here
            print(job.name)
        return
    store, folders, failed = RunStore(results / "runs"), [], []
    for number, job in enumerate(tqdm(jobs, desc=profile["name"], unit="job", disable=None), 1):
        print(f"[{number}/{len(jobs)}] {job.name}", flush=True)
        try:
            folders.append(job.work())
        except EXPECTED as error:  # one that fails is reported and does not stop the others
            fail_softly(job.name, error)
            failed.append(job.name)
            folders.append(store.fail(job.config, error))
    report(profile, results, jobs, folders)
    if failed:
        fail(RuntimeError(f"{len(failed)} of {len(jobs)} jobs failed: {'; '.join(failed)}"))


def plan(profile: Mapping[str, Any], results: Path, allow_code_execution: bool) -> Iterator[Job]:
    """Every job of a profile, a model at a time: first its answers to a benchmark by every row, then their speed."""
    common = [*profile["common"], f"device={profile['device']}"]
    sizes = [f"limit={profile['limit']}", f"batch_size={profile['batch_size']}", "trace=true"]
    for model, benchmarks in profile["models"].items():
        for benchmark in benchmarks:
            chosen = [f"model={model}", f"benchmark={benchmark}", *common]
            for row in profile["rows"]:
                config = compose_run([*row.split(), *chosen, *sizes])
                yield Job(f"{model} {benchmark} {row}", partial(answers, config, results, allow_code_execution), config)
            configs = [compose_run([*row.split(), *chosen]) for row in profile["rows"]]
            work = partial(speed, configs, profile["prompts"], profile["warmup"], results)
            yield Job(f"{model} {benchmark} speed of all rows", work, configs[0] | {"method": {"name": "speed"}})


def answers(config: Mapping[str, Any], results: Path, allow_code_execution: bool) -> Path:
    """The folder of a scored run."""
    return run(config, results, allow_code_execution)[0]


def report(profile: Mapping[str, Any], results: Path, jobs: Sequence[Job], folders: Sequence[Path]) -> None:
    """Write tables and plots, print the main table and what the figures say, and where everything is."""
    out = results / profile["name"]
    paths = write_report(
        results / "runs",
        out,
        profile["title"],
        folders=folders,
        defaults={job.config["method"]["name"]: job.config["method"] for job in jobs},
        reference=Path(CONF) / "reference",
    )
    print(f"\n{format_table(paths.main)}\n")
    for line in [*paths.findings, *(f"note: {note}" for note in paths.notes)]:
        print(line)
    print(f"\ntables and plots: {out}\npage: {paths.page}")


if __name__ == "__main__":
    entry_point(main, "reproduce_paper")
