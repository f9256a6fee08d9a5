"""What a profile comes to: its comparisons, each on models and benchmarks, and the jobs of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entry import compose_run, expanded
from run import run
from speed import labels, speed

Config = Mapping[str, Any]
MAIN = "main"  # the comparison that a profile's own rows make; its sweeps are further ones


@dataclass
class Timing:
    """Every row of a comparison, timed in turn on the first questions of a benchmark."""

    comparison: str
    configs: list[dict[str, Any]]
    prompts: int
    warmup: int
    folder: Path | None = None
    """Of the measurement, once it is done."""

    @property
    def main(self) -> bool:
        return self.comparison == MAIN

    @property
    def name(self) -> str:
        which = "" if self.main else f" {self.comparison}"
        return f"{_place(self.configs[0])}{which}: speed of {len(self.configs)} rows"

    @property
    def filed(self) -> Config:
        """The configuration that the job is filed under where it fails."""
        return self.configs[0] | {"method": {"name": "speed"}, "comparison": self.comparison}

    def do(self, results: Path, allow_code_execution: bool) -> Path:
        """Measure what is missing; returns the folder."""
        self.folder = speed(self.configs, self.prompts, self.warmup, results)
        return self.folder


@dataclass
class Answers:
    """One row's answers, scored. Those that a timing of the row gave already are taken from there."""

    config: dict[str, Any]
    label: str
    timing: Timing

    @property
    def name(self) -> str:
        return f"{_place(self.config)} {self.label}"

    @property
    def configs(self) -> list[dict[str, Any]]:
        return [self.config]

    @property
    def filed(self) -> Config:
        return self.config

    @property
    def taken(self) -> int:
        """How many answers the timing gives: not those that are to be recorded step by step."""
        trace = self.config["trace"]
        return 0 if trace is True else max(0, self.timing.prompts - trace)

    def do(self, results: Path, allow_code_execution: bool) -> Path:
        """Make the run, or what it lacks; returns its folder."""
        return run(self.config, results, allow_code_execution, self.timing.folder)[0]


Job = Timing | Answers


def _place(config: Config) -> str:
    return f"{config['model']['name']} {config['benchmark']['name']}"


def plan(profile: Mapping[str, Any]) -> list[Job]:
    """Every job of a profile, a model at a time. A row that stands in several comparisons is answered once."""
    jobs = []
    answered = set()
    for job in _jobs(profile):
        if isinstance(job, Answers):
            config = json.dumps(job.config, sort_keys=True)
            if config in answered:
                continue
            answered.add(config)
        jobs.append(job)
    return jobs


def _jobs(profile: Mapping[str, Any]) -> Iterator[Job]:
    comparisons = {MAIN: {"rows": profile["rows"], "models": profile["models"]}, **profile["sweeps"]}
    for model in dict.fromkeys(model for comparison in comparisons.values() for model in comparison["models"]):
        for name, comparison in comparisons.items():
            for benchmark in comparison["models"].get(model, ()):
                yield from _compared(profile, name, comparison, model, benchmark)


def _compared(
    profile: Mapping[str, Any], name: str, comparison: Mapping[str, Any], model: str, benchmark: str
) -> Iterator[Job]:
    """One comparison on one model and benchmark: the speed of its rows, then the answers of each."""
    sizes = {key: profile[key] for key in ("limit", "prompts")} | profile["sizes"].get(benchmark, {})
    prompts = comparison.get("prompts", sizes["prompts"])
    chosen = [f"model={model}", f"benchmark={benchmark}", *profile["common"], f"device={profile['device']}"]
    rows = [row for several in comparison["rows"] for row in expanded(several)]
    timing = Timing(name, [compose_run([*row, *chosen]) for row in rows], prompts, profile["warmup"])
    yield timing
    asked = {"limit": sizes["limit"], "batch_size": profile["batch_size"], "trace": profile["trace"]}
    for config, label in zip(timing.configs, labels(timing.configs), strict=True):
        yield Answers(config | asked, label, timing)
