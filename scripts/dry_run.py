"""A plan as it would be carried out: every job with its questions, tokens and hours, and what would be downloaded.

Every configuration is resolved and its method and decoding are built, so that settings that mean nothing are refused
here. Nothing is downloaded, and no weights are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import hydra
import pandas as pd
import torch
from entry import build, plain
from plan import Answers, Config, Job

from entropycache.models.checkpoint import local_folder
from entropycache.types import ModelSpec
from evaluation.estimate import Assumed, answer_flops, flops_per_second, model_spec, parameters
from evaluation.report.formats import figure
from evaluation.scorers import SCORERS


def dry_run(jobs: Sequence[Job], known: Mapping[str, Any], allow_code_execution: bool) -> None:
    """Print the plan. `known` is conf/estimate: what is taken for granted where it cannot be looked up."""
    estimate = Estimate(jobs, known)
    table = pd.DataFrame([estimate.row(job) for job in jobs])
    total = (
        table[["prompt tokens", "canvas tokens", "hours"]].sum(min_count=1).to_frame().T.assign(job=f"{len(jobs)} jobs")
    )
    width = table["job"].str.len().max()
    forms = {"job": f"{{:{width}}}".format, "hours": figure} | dict.fromkeys(COUNTS, count)
    print(pd.concat([table, total]).to_string(index=False, na_rep="–", formatters=forms))
    print("\n" + "\n".join([*estimate.notes(), *refused(jobs, allow_code_execution)]))


COUNTS = ("prompts", "prompt tokens", "canvas tokens")


def count(number: float) -> str:
    return "" if pd.isna(number) else f"{number:,.0f}"


class Estimate:
    """Sizes, rates and assumptions for the jobs of one plan."""

    def __init__(self, jobs: Sequence[Job], known: Mapping[str, Any]) -> None:
        self.known = known
        self.assumed = Assumed(known["tokens_per_pass"], known["rows_computed"])
        shapes = {path: plain(hydra.compose(f"shape/{name}").shape) for path, name in known["shapes"].items()}
        self.configs = [config for job in jobs for config in job.configs]
        self.models = {config["model"]["name"]: config["model"] for config in self.configs}
        self.specs = {name: model_spec(model, shapes) for name, model in self.models.items()}
        self.device = torch.device(self.configs[0]["device"])
        self.here = self.device.type != "cuda" or torch.cuda.is_available()
        self.rates = {name: self.rate(spec, self.models[name]["dtype"]) for name, spec in self.specs.items() if spec}

    def rate(self, spec: ModelSpec, dtype: str) -> float:
        if not self.here:
            return float(self.known["flops_per_second"])
        return flops_per_second(spec, getattr(torch, dtype), self.device, self.known["calibrate"])

    def row(self, job: Job) -> dict[str, Any]:
        """A job's line in the printed plan."""
        made = list(self.generations(job))
        hours = [number * self.hours(config) for config, number in made]
        return {
            "job": job.name,
            "prompts": self.questions(job.config) if isinstance(job, Answers) else job.prompts,
            "prompt tokens": sum(number * self.benchmark(config)["prompt_tokens"] for config, number in made),
            "canvas tokens": sum(number * config["benchmark"]["gen_length"] for config, number in made),
            "hours": sum(hours),
        }

    def generations(self, job: Job) -> Iterator[tuple[Config, int]]:
        """The configurations of a job, each with the number of answers that it generates."""
        if isinstance(job, Answers):
            yield job.config, max(0, self.questions(job.config) - job.taken)
        else:
            yield from ((config, job.prompts + job.warmup) for config in job.configs)

    def questions(self, config: Config) -> int:
        items: int = config["benchmark"].get("count") or self.benchmark(config)["items"]
        return items if config["limit"] is None else min(items, config["limit"])

    def benchmark(self, config: Config) -> Mapping[str, Any]:
        """What is known of a benchmark. Raises ValueError where nothing is, naming the place for it."""
        name = config["benchmark"]["name"]
        if name not in self.known["benchmarks"]:
            raise ValueError(f"benchmark={name}: conf/estimate/default.yaml does not say how many items it has")
        found: Mapping[str, Any] = self.known["benchmarks"][name]
        return found

    def hours(self, config: Config) -> float:
        """Hours of one answer; NaN for a model of unknown shape."""
        build(config["method"])  # settings that mean nothing are refused here
        decoding, name = build(config["decoding"]), config["model"]["name"]
        if (spec := self.specs[name]) is None:
            return float("nan")
        cached, prompt = config["method"]["name"] != "full_recompute", self.benchmark(config)["prompt_tokens"]
        return answer_flops(spec, prompt, decoding, cached, self.assumed) / self.rates[name] / 3600

    def notes(self) -> list[str]:
        """What the figures rest on, and what would be downloaded."""
        kind = "measured here" if self.here else f"assumed, for there is no {self.device} here"
        rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in self.rates.items())
        unknown = [name for name, spec in self.specs.items() if spec is None]
        return [
            "Tokens and hours are of the answers that a job generates: those that a timing gave are taken from it.",
            f"Hours: operations by formula over so many a second (1e9; {kind}): {rates or 'none'}. Assumed: "
            f"{self.assumed.tokens_per_pass:g} tokens a pass where a decoding commits several, "
            f"{self.assumed.rows_computed:g} of the rows computed by a method with a cache, prompts of the lengths in "
            "conf/estimate. Loading, scoring, and what a pass takes beside its arithmetic come on top.",
            *[f"{name}: its weights are not here and its shape is not known: no hours" for name in unknown],
            f"Downloads: {'; '.join(self.downloads()) or 'none'}.",
        ]

    def downloads(self) -> Iterator[str]:
        for name, model in self.models.items():
            if local_folder(model["path"]) is None and (spec := self.specs[name]):
                yield f"{model['path']} {parameters(spec) * 2 / 1e9:.1f} GB (weights in bfloat16)"
        fetched = dict.fromkeys(self.benchmark(c)["hub"] for c in self.configs if c["benchmark"]["data"] == "hub")
        yield from (f"{name} {self.known['megabytes'][name]:g} MB" for name in fetched)


def refused(jobs: Sequence[Job], allow_code_execution: bool) -> list[str]:
    """The benchmarks of the plan that run what a model writes, where that is not allowed."""
    names = dict.fromkeys(config["benchmark"]["name"] for job in jobs for config in job.configs)
    code = [name for name in names if name in SCORERS and SCORERS[name].runs_code]
    if allow_code_execution or not code:
        return []
    return [f"{', '.join(code)}: run what the model writes, and would fail without allow_code_execution=true."]
