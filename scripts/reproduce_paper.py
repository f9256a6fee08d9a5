"""The paper's tables and plots for a profile: run what is missing, time it, write the report, print the table.

make reproduce-paper              the embedded profile: small checkpoints, CPU, no network
make reproduce-paper SMOKE=1      the same in minutes, with few questions
make reproduce-paper DRY_RUN=1    the plan alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from entry import CONF, EXPECTED, entry_point, fail, fail_softly, one_line, plain
from omegaconf import DictConfig
from plan import Job, Timing, plan
from tqdm import tqdm

from evaluation.devices import check_idle
from evaluation.report import format_table, write_report
from evaluation.store import RunStore


def main(cfg: DictConfig) -> None:
    config = plain(cfg)
    profile, results, allowed = config["profile"], Path(config["results"]), config["allow_code_execution"]
    if config["smoke"]:
        profile |= profile["smoke"] | {"name": f"{profile['name']}-smoke"}
    jobs = plan(profile)
    if config["dry_run"]:
        from dry_run import dry_run

        return dry_run(jobs, config["estimate"], allowed)
    if not config["allow_busy_device"]:
        check_idle(profile["device"])
    store, folders, failures = RunStore(results / "runs"), [], Counter[str]()
    for number, job in enumerate(tqdm(jobs, desc=profile["name"], unit="job", disable=None), 1):
        print(f"[{number}/{len(jobs)}] {job.name}", flush=True)
        try:
            folders.append(job.do(results, allowed))
            store.clear_failure(job.filed)
        except EXPECTED as error:  # one that fails is reported and does not stop the others
            fail_softly(job.name, error)
            failures[one_line(error)] += 1
            folders.append(store.fail(job.filed, error))
    report(profile, results, jobs, folders)
    if failures:
        reasons = "; ".join(f"{reason} ({count} jobs)" for reason, count in failures.items())
        fail(RuntimeError(f"{failures.total()} of {len(jobs)} jobs failed: {reasons}"))


def main_settings(jobs: Sequence[Job]) -> dict[str, Mapping[str, Any]]:
    """The settings of each method that the main comparison has one setting of: what the main table shows of it."""
    chosen: dict[str, list[Mapping[str, Any]]] = {}
    for config in (config for job in jobs if isinstance(job, Timing) and job.main for config in job.configs):
        settings = chosen.setdefault(config["method"]["name"], [])
        settings += [config["method"]] if config["method"] not in settings else []
    return {name: settings[0] for name, settings in chosen.items() if len(settings) == 1}


def report(profile: Mapping[str, Any], results: Path, jobs: Sequence[Job], folders: Sequence[Path]) -> None:
    """Write tables and plots, print the main table and what the figures say, and where everything is."""
    out = results / profile["name"]
    paths = write_report(
        results / "runs",
        out,
        profile["title"],
        folders=folders,
        defaults=main_settings(jobs),
        reference=Path(CONF) / "reference",
    )
    print(f"\n{format_table(paths.main)}\n")
    for line in [*paths.findings, *(f"note: {note}" for note in paths.notes)]:
        print(line)
    print(f"\ntables and plots: {out}\npage: {paths.page}")


if __name__ == "__main__":
    entry_point(main, "reproduce_paper")
