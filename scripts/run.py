"""One run: generate what is missing, score, print one line. `-m` with comma-separated values makes a sweep.

python scripts/run.py model=tiny_llada method=entropycache benchmark=mini_gsm8k limit=50 python scripts/run.py -m
method=entropycache method.tau=0.05,0.5,2.0 method.k=4,16 model=tiny_llada benchmark=mini_gsm8k
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entry import EXPECTED, answerer, entry_point, generation_config, keyed, manifest, questions
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from tqdm import tqdm

from evaluation.files import read_json, read_lines
from evaluation.score import score_run
from evaluation.scorers import SCORERS
from evaluation.statistics import figures
from evaluation.store import RunStore


def main(cfg: DictConfig) -> Path:
    config, results = generation_config(cfg), Path(cfg.results)
    try:
        folder, scores = run(config, results, cfg.allow_code_execution)
    except EXPECTED as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN:  # among others it is shown as failed, not passed over
            RunStore(results / "runs").fail(config, error)
        raise
    print(f"{folder}: {summary_line(folder, scores)}")
    return folder


def run(config: Mapping[str, Any], results: Path, allow_code_execution: bool = False) -> tuple[Path, Mapping[str, Any]]:
    """Make, or take up, the run of a configuration; returns its folder and its scores.

    A finished run is not run again, nor scored again; `scripts/score.py` does the latter.
    """
    from evaluation.generate import generate_run

    check_permission(config["benchmark"]["name"], allow_code_execution)
    answering = answerer(config)
    task, asked = questions(config, answering.chat_template())
    with RunStore(results / "runs").open(keyed(config), manifest(config, task, asked)) as store:
        name = " ".join(config[group]["name"] for group in ("model", "benchmark", "method", "decoding"))
        done = len(asked) - len(store.missing)
        with tqdm(total=len(asked), initial=done, desc=name, unit="sample", disable=None) as bar:
            generate_run(store, answering, asked, progress=lambda sample: bar.update())
        store.finish()
    scores = store.folder / "scores.json"
    if done == len(asked) and scores.exists():
        return store.folder, read_json(scores)
    return store.folder, score_run(store.folder, allow_code_execution=allow_code_execution)


def check_permission(benchmark: str, allow_code_execution: bool) -> None:
    """Refuse, before anything is generated, a benchmark whose answers are programs that may not be run."""
    scorer = SCORERS.get(benchmark)
    if scorer is not None and scorer.runs_code and not allow_code_execution:
        raise ValueError(
            f"benchmark.name={benchmark} is judged by running what the model writes; "
            "allow_code_execution=true allows it (docs/security.md says what confines it)"
        )


def summary_line(folder: Path, scores: Mapping[str, Any]) -> str:
    """Accuracy and cost of a finished run in one line."""
    cost = figures(read_lines(folder / "samples.jsonl")[0])
    shown = scores["accuracy"][scores["shown"]]
    error = "" if shown["se"] is None else f" ± {100 * shown['se']:.1f}"
    return (
        f"{scores['benchmark']} {scores['shown']} {100 * shown['mean']:.1f}{error} % of {scores['n']}; "
        f"{cost.tokens_per_second or 0:.1f} tokens/s, {cost.tokens_per_forward or 0:.2f} tokens a forward pass, "
        f"{100 * (cost.recompute_ratio or 0):.1f} % of rows recomputed, {100 * (cost.refresh_rate or 0):.1f} % of "
        f"steps refreshed, {100 * (cost.decision_share or 0):.2f} % of the time spent deciding"
    )


if __name__ == "__main__":
    entry_point(main, "run")
