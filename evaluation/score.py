"""From samples to scores: `samples.jsonl` in, `scores.json` out. Needs neither torch nor lm-eval."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluation.runs import load_run
from evaluation.scorers import SCORERS, CodeOptions, CodeScorer, Judged, Score, Scorer, Verdict
from evaluation.statistics import Mean, group_means, mean_of
from evaluation.store import write_scores

__all__ = ["SCORERS", "CodeOptions", "Score", "Scorer", "Verdict", "score_run", "summary"]


def score_run(
    run_dir: str | Path, *, allow_code_execution: bool = False, workers: int = 2, timeout: float = 3.0
) -> dict[str, Any]:
    """Judges every sample that a run has, writes `scores.json` (whole or not at all) and returns its content.

    `workers` programs at a time and `timeout` seconds of processor time a program matter to benchmarks that run code,
    which they do only if allowed. Raises ValueError where there is nothing to score, execution.ExecutionError where
    code may not or cannot be judged, grading.GraderUnavailableError where math-verify cannot be used.
    """
    run = load_run(Path(run_dir))
    name = run.config.get("benchmark", {}).get("name")
    if run.status == "damaged":
        raise ValueError(run.note)
    if not run.samples:
        raise ValueError(f"{run_dir} holds no samples, so there is nothing to score; run it first")
    if name not in SCORERS:
        raise ValueError(f"{run_dir}: benchmark.name={name} has no scorer; one of {', '.join(SCORERS)}")
    options = CodeOptions(allow_code_execution, workers, timeout)
    docs, texts = [sample["doc"] for sample in run.samples], [sample["text"] for sample in run.samples]
    result = summary(name, run.samples, SCORERS[name].score_all(docs, texts, options))
    write_scores(run.folder, result)
    return result


def summary(name: str, samples: Sequence[Mapping[str, Any]], judged: Judged) -> dict[str, Any]:
    """The content of `scores.json`. Where there are subtasks, `micro` and `macro` are means of the shown verdict."""
    scorer, scores = SCORERS[name], judged.scores
    groups: dict[str, list[Score]] = {}
    for sample, score in zip(samples, scores, strict=True):
        groups.setdefault(sample["subtask"], []).append(score)
    subtasks = {} if None in groups else {group: accuracy(scorer, scores) for group, scores in sorted(groups.items())}
    means = group_means({group: verdicts[scorer.shown] for group, verdicts in subtasks.items()}) if subtasks else None
    return {
        "benchmark": name,
        "scorer": name.removeprefix("mini_"),
        "shown": scorer.shown,
        "until": list(scorer.until),
        "n": len(scores),
        "accuracy": _plain(accuracy(scorer, scores)),
        "subtasks": {group: _plain(verdicts) for group, verdicts in subtasks.items()} or None,
        "micro": means and asdict(means.micro),
        "macro": means and asdict(means.macro),
        "isolation": None,
        **judged.record,
        "samples": [
            {"id": sample["id"]} | {verdict: asdict(score[verdict]) for verdict in scorer.names}
            for sample, score in zip(samples, scores, strict=True)
        ],
    }


def accuracy(scorer: Scorer | CodeScorer, scores: Sequence[Score]) -> dict[str, Mean]:
    """Mean and standard error of each of a scorer's verdicts."""
    return {verdict: mean_of(score[verdict].correct for score in scores) for verdict in scorer.names}


def _plain(means: Mapping[str, Mean]) -> dict[str, dict[str, Any]]:
    return {verdict: asdict(mean) for verdict, mean in means.items()}
