"""One run: generate what is missing, score, print one line. `-m` with comma-separated values makes a sweep.

python scripts/run.py model=tiny_llada method=entropycache benchmark=mini_gsm8k limit=50
python scripts/run.py -m method=entropycache method.tau=0.1,0.5 model=tiny_llada benchmark=mini_gsm8k limit=50
python scripts/run.py -m +experiment=tau_k_grid model=tiny_llada benchmark=mini_gsm8k limit=50
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entry import (
    EXPECTED,
    answerer,
    build,
    entry_point,
    generation_config,
    keyed,
    manifest,
    own_gpu,
    plain,
    questions,
)
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from tqdm import tqdm

from evaluation.files import RunBusyError, read_lines
from evaluation.runs import read_scores
from evaluation.score import score_run
from evaluation.scorers import SCORERS
from evaluation.shards import Shard, merge, unfinished
from evaluation.statistics import figures
from evaluation.store import Run, RunStore

Scores = Mapping[str, Any]


def main(cfg: DictConfig) -> Path:
    config, results = generation_config(cfg), Path(cfg.results)
    own_gpu(cfg)
    scores: Scores | None
    try:
        if cfg.shards == 1 and not cfg.shard:
            folder, scores = run(config, results, cfg.allow_code_execution)
        else:
            folder, scores = run_shards(config, results, cfg.shards, cfg.shard, cfg.allow_code_execution)
    except EXPECTED as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN:  # among others it is shown as failed, not passed over
            RunStore(results / "runs").fail(config, error)
        raise
    if scores is not None:
        print(f"{folder}: {summary_line(folder, scores)}")
        if tracker := plain(cfg).get("tracker"):
            print(f"{tracker['name']}: {build(tracker).log_run(folder)}")
    return folder


def run(
    config: Mapping[str, Any], results: Path, allow_code_execution: bool = False, measured: Path | None = None
) -> tuple[Path, Scores]:
    """Make, or take up, the run of a configuration; returns its folder and its scores.

    A finished run is not run again, nor scored again; `scripts/score.py` does the latter. What a paired measurement of
    speed, in the folder `measured`, answered already is taken from there.
    """
    from evaluation.speed import take_answers

    answering, asked, key, record = prepare(config, allow_code_execution)
    runs = RunStore(results / "runs")
    with runs.open(key, record) as store:
        runs.clear_failure(config)
        made = bool(store.missing)
        if made and measured:
            take_answers(store, measured, key, asked, answering)
        make(store, answering, asked, config)
    return store.folder, scored(store.folder, made, allow_code_execution)


def run_shards(
    config: Mapping[str, Any], results: Path, shards: int, shard: int | None, allow_code_execution: bool = False
) -> tuple[Path, Scores | None]:
    """Make, or take up, one shard of a run, or all of them in turn; whoever finds all shards done makes the run of them
    and scores it. The scores are None for the others, which say what is still missing.
    """
    answering, asked, key, record = prepare(config, allow_code_execution)
    folder = RunStore(results / "runs").folder(key)
    finished = (folder / "DONE").exists()
    if not finished:
        for number in range(shards) if shard is None else [shard]:
            with Shard(results, key, record, number, shards) as store:
                make(store, answering, asked, config, f" {number} of {shards}")
        if missing := unfinished(results, key, shards):
            named = ", ".join(map(str, missing))
            print(f"{store.folder}: done; of {shards} shards these are still missing: {named}")
            return folder, None
    try:
        merge(results, key, record, shards)
    except RunBusyError:
        print(f"{folder}: all {shards} shards are done; another process is putting them together")
        return folder, None
    return folder, scored(folder, not finished, allow_code_execution)


def prepare(config: Mapping[str, Any], allow_code_execution: bool) -> tuple[Any, list[Any], dict[str, Any], Any]:
    """What answers, what is asked, and the configuration and manifest that the run is filed with."""
    check_permission(config["benchmark"]["name"], allow_code_execution)
    answering = answerer(config)
    task, asked = questions(config, answering.chat_template())
    return answering, asked, keyed(config), manifest(config, task, asked)


def make(store: Run, answering: Any, asked: list[Any], config: Mapping[str, Any], which: str = "") -> None:
    """Generate what a run, or a shard of one, still lacks, and finish it."""
    from evaluation.generate import generate_run

    name = " ".join(config[group]["name"] for group in ("model", "benchmark", "method", "decoding")) + which
    done = len(store.samples)
    with tqdm(total=done + len(store.missing), initial=done, desc=name, unit="sample", disable=None) as bar:
        generate_run(store, answering, asked, progress=lambda sample: bar.update())
    store.finish()


def scored(folder: Path, made: bool, allow_code_execution: bool) -> Scores:
    """The scores of a finished run: those there are, unless samples were `made` since."""
    scores = None if made else read_scores(folder)
    if scores is not None:
        return scores
    return score_run(folder, allow_code_execution=allow_code_execution)


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
