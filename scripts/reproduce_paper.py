"""The paper's tables and plots for a profile: run what is missing, time it, write the report, print the table.

make reproduce-paper              the embedded profile: small checkpoints, CPU, no network
make reproduce-paper SMOKE=1      the same in minutes, with few questions
make reproduce-paper DRY_RUN=1    the plan alone
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from entry import CONF, EXPECTED, compose_run, entry_point, fail_softly, plain
from omegaconf import DictConfig
from run import run
from speed import speed
from tqdm import tqdm


@dataclass(frozen=True)
class Job:
    """One piece of work: its name, and what does it."""

    name: str
    work: Callable[[], object]


def main(cfg: DictConfig) -> None:
    config = plain(cfg)
    profile, results = config["profile"], Path(config["results"])
    if config["smoke"]:
        profile |= profile["smoke"]
    jobs = list(plan(profile, results))
    if config["dry_run"]:
        print("\n".join(job.name for job in jobs))
        return
    failed = [job for job in tqdm(jobs, desc=profile["name"], unit="job", disable=None) if not done(job)]
    report(profile, results)
    if failed:
        sys.exit(f"error: {len(failed)} of {len(jobs)} jobs failed: {'; '.join(job.name for job in failed)}")


def plan(profile: Mapping[str, Any], results: Path) -> Iterator[Job]:
    """Every job of a profile, a model at a time: first its answers to a benchmark by every row, then their speed."""
    common = [*profile["common"], f"device={profile['device']}"]
    for model in profile["models"]:
        for benchmark in profile["benchmarks"]:
            chosen = [f"model={model}", f"benchmark={benchmark}", *common]
            for row in profile["rows"]:
                sizes = [f"limit={profile['limit']}", f"batch_size={profile['batch_size']}"]
                config = compose_run([*row.split(), *chosen, *sizes])
                yield Job(f"run {model} {benchmark} {row}", partial(run, config, results))
            configs = [compose_run([*row.split(), *chosen]) for row in profile["rows"]]
            work = partial(speed, configs, profile["prompts"], profile["warmup"], results)
            yield Job(f"speed {model} {benchmark}", work)


def done(job: Job) -> bool:
    """Do a job; one that fails is reported and does not stop the others."""
    try:
        job.work()
    except EXPECTED as error:
        fail_softly(job.name, error)
        return False
    return True


def report(profile: Mapping[str, Any], results: Path) -> None:
    """Write tables and plots, print the main table, and say where everything is."""
    from evaluation.report import format_table, write_report

    out = results / profile["name"]
    paths = write_report(
        results / "runs",
        out,
        profile["title"],
        models=profile["models"],
        benchmarks=profile["benchmarks"],
        reference=Path(CONF) / "reference",
    )
    print(format_table(paths.main))
    print(f"\ntables, plots and page: {out}")


if __name__ == "__main__":
    entry_point(main, "reproduce_paper")
