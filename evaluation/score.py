"""From samples to scores: `samples.jsonl` in, `scores.json` out. Needs neither torch nor lm-eval.

A scorer gives an answer several named verdicts side by side and says which one the tables show. What it extracted is
kept with every verdict, so that a person can see why an answer counted.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from evaluation import extract
from evaluation.statistics import Mean, group_means, mean_of

Doc = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Whether one rule holds the answer right, what it extracted (None: nothing found), and a reason if one helps."""

    correct: bool
    extracted: str | None
    note: str | None = None


@dataclass(frozen=True)
class Score:
    """One answer's verdicts by name."""

    verdicts: Mapping[str, Verdict]

    def __getitem__(self, name: str) -> Verdict:
        return self.verdicts[name]

    def as_numbers(self) -> dict[str, float]:
        return {name: float(verdict.correct) for name, verdict in self.verdicts.items()}


@dataclass(frozen=True)
class Scorer:
    """How a benchmark's answers are judged: the text is cut at `until`, then `judge` gives the verdicts `names`."""

    judge: Callable[[Doc, str], Mapping[str, Verdict]]
    names: tuple[str, ...]
    shown: str
    until: tuple[str, ...]
    runs_code: bool = False

    def __call__(self, doc: Doc, text: str) -> Score:
        return Score(self.judge(doc, extract.cut(text, self.until)))


def number_judge(strict: Callable[[str], str | None]) -> Callable[[Doc, str], Mapping[str, Verdict]]:
    """GSM8K's two verdicts: the number where the prompt's form puts it, and the last number of the text."""

    def judge(doc: Doc, text: str) -> Mapping[str, Verdict]:
        gold = extract.marked_number(doc["answer"]) or extract.stated_number(doc["answer"])
        found = {"strict": strict(text), "flexible": extract.last_number(text)}
        return {name: Verdict(extract.same_number(number, gold), number) for name, number in found.items()}

    return judge


GSM8K = Scorer(number_judge(extract.marked_number), ("strict", "flexible"), "strict", ("Question:",))
GSM8K_COT = Scorer(number_judge(extract.stated_number), ("strict", "flexible"), "strict", ("Q:",))

SCORERS: dict[str, Scorer] = {
    "gsm8k": GSM8K,
    "gsm8k_cot": GSM8K_COT,
}
SCORERS |= {f"mini_{name}": scorer for name, scorer in SCORERS.items()}


def read_samples(run_dir: Path) -> list[dict[str, Any]]:
    """The samples of a run in order; a last line torn by a kill is left out. ValueError if there is none."""
    path = run_dir / "samples.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; is {run_dir} the directory of a run?")
    lines = [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
    if not lines:
        raise ValueError(f"{path} holds no samples: there is nothing to score; finish the run first")
    return sorted((json.loads(line) for line in lines), key=lambda sample: int(sample["index"]))


def score_run(run_dir: str | Path) -> dict[str, Any]:
    """Judges every sample of a run, writes `scores.json` (by rename: whole or not at all) and returns its content."""
    run_dir = Path(run_dir)
    name = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))["benchmark"]["name"]
    scorer, samples = SCORERS[name], read_samples(run_dir)
    scores = [scorer(sample["doc"], sample["text"]) for sample in samples]
    result = summary(name, scorer, samples, scores)
    part = run_dir / f"scores.json.{os.getpid()}"
    part.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    part.replace(run_dir / "scores.json")
    return result


def summary(name: str, scorer: Scorer, samples: Sequence[Mapping[str, Any]], scores: Sequence[Score]) -> dict[str, Any]:
    """The content of `scores.json`. Where there are subtasks, `micro` and `macro` are means of the shown verdict."""
    groups: dict[str, list[Score]] = {}
    for sample, score in zip(samples, scores, strict=True):
        groups.setdefault(sample["subtask"], []).append(score)
    subtasks = None if None in groups else {group: accuracy(scorer, scores) for group, scores in groups.items()}
    means = subtasks and group_means({group: verdicts[scorer.shown] for group, verdicts in subtasks.items()})
    return {
        "benchmark": name,
        "shown": scorer.shown,
        "n": len(scores),
        "until": list(scorer.until),
        "accuracy": _plain(accuracy(scorer, scores)),
        "subtasks": subtasks and {group: _plain(verdicts) for group, verdicts in subtasks.items()},
        "micro": means and asdict(means.micro),
        "macro": means and asdict(means.macro),
        "samples": [
            {"id": sample["id"]} | {verdict: asdict(score[verdict]) for verdict in scorer.names}
            for sample, score in zip(samples, scores, strict=True)
        ],
    }


def accuracy(scorer: Scorer, scores: Sequence[Score]) -> dict[str, Mean]:
    return {verdict: mean_of(score[verdict].correct for score in scores) for verdict in scorer.names}


def _plain(means: Mapping[str, Mean]) -> dict[str, dict[str, Any]]:
    return {verdict: asdict(mean) for verdict, mean in means.items()}
