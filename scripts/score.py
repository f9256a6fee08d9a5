"""Score runs again from their samples, or look at the samples. Needs neither torch, lm-eval nor Hydra.

    python scripts/score.py results/runs/mini_gsm8k/tiny_llada/entropycache/0123456789abcdef
    python scripts/score.py 0123456789abcdef --show 20 --wrong
    python scripts/score.py results/runs/humaneval/*/*/* allow_code_execution=true workers=8

A run is its folder, or its key below results/runs. `--show` prints question, answer, what was extracted and the
verdicts of the first samples; it scores only a run that has no scores yet.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any

from evaluation.execution import ExecutionError
from evaluation.files import StoreError, read_json
from evaluation.grading import GraderUnavailableError
from evaluation.runs import load_run
from evaluation.score import score_run

EXPECTED = (ValueError, OSError, StoreError, ExecutionError, GraderUnavailableError)
SETTINGS: dict[str, Any] = {
    "allow_code_execution": lambda value: {"true": True, "false": False}[value.lower()],
    "workers": int,
    "timeout": float,
}
EXAMPLES = {"allow_code_execution": "true", "workers": "2", "timeout": "3.0"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN | KEY=VALUE", help=f"settings: {', '.join(SETTINGS)}")
    parser.add_argument("--show", type=int, metavar="N", help="print N samples instead of scoring again")
    parser.add_argument("--wrong", action="store_true", help="print only samples whose shown verdict is wrong")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder below which keys are looked up")
    options = parser.parse_args(arguments)
    try:
        chosen = dict(setting(word) for word in options.runs if is_setting(word))
        for word in (word for word in options.runs if not is_setting(word)):
            folder = run_folder(word, options.results)
            if options.show is None or not (folder / "scores.json").is_file():
                print(f"{folder}: {summary_line(score_run(folder, **chosen))}")
            if options.show is not None:
                print("\n".join(shown_samples(folder, options.show, options.wrong)))
    except EXPECTED as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


def is_setting(word: str) -> bool:
    return word.partition("=")[0] in SETTINGS


def setting(word: str) -> tuple[str, Any]:
    """(name, value) of NAME=VALUE."""
    name, _, value = word.partition("=")
    try:
        return name, SETTINGS[name](value)
    except (ValueError, KeyError):
        raise ValueError(f"{word}: not a value for {name}; for example {name}={EXAMPLES[name]}") from None


def run_folder(word: str, results: Path) -> Path:
    """The folder that a path or a run's key names."""
    if Path(word).is_dir():
        return Path(word)
    found = sorted((results / "runs").glob(f"*/*/*/{word}")) if "/" not in word else []
    if len(found) != 1:
        raise ValueError(f"{word} is no run's folder, nor the key of one run below {results / 'runs'}")
    return found[0]


def summary_line(scores: Mapping[str, Any]) -> str:
    """Every verdict's mean in percent, the shown one first; micro and macro means where there are subtasks."""
    names = sorted(scores["accuracy"], key=lambda name: name != scores["shown"])
    parts = [f"{name} {percent(scores['accuracy'][name])}" for name in names]
    parts += [f"{kind} {percent(scores[kind])}" for kind in ("micro", "macro") if scores[kind]]
    warning = f"; warning: {scores['warning']}" if scores.get("warning") else ""
    return f"{scores['benchmark']}, n = {scores['n']}: {', '.join(parts)}{warning}"


def percent(mean: Mapping[str, Any]) -> str:
    error = "" if mean["se"] is None else f" ± {100 * mean['se']:.2f}"
    return f"{100 * mean['mean']:.2f}{error} %"


def shown_samples(folder: Path, many: int, wrong: bool) -> Iterator[str]:
    """The first `many` samples for people. What all prompts of a subtask begin with, the shots, is left out."""
    scores, samples = read_json(folder / "scores.json"), load_run(folder).samples
    verdicts = {score["id"]: score for score in scores["samples"]}
    chosen = [
        s for s in samples if s["id"] in verdicts and not (wrong and verdicts[s["id"]][scores["shown"]]["correct"])
    ]
    for sample in chosen[:many]:
        head = commonprefix([other["prompt"] for other in samples if other["subtask"] == sample["subtask"]])
        cut = head.rfind("\n\n") + 2 if len(head) < len(sample["prompt"]) else 0
        omitted = f"[{cut} characters that all prompts share]\n" if cut > 2 else ""
        yield f"═══ {sample['id']} {'═' * max(0, 100 - len(sample['id']))}"
        yield f"{omitted}{sample['prompt'][cut if omitted else 0 :]}"
        yield f"─── answer, {sample['generated_tokens']} tokens\n{sample['text']}"
        yield f"─── gold\n{sample['target']}"
        for name in scores["accuracy"]:
            verdict = verdicts[sample["id"]][name]
            note = f" ({verdict['note']})" if verdict["note"] else ""
            yield f"─── {name}: {'right' if verdict['correct'] else 'wrong'}{note}, extracted: {verdict['extracted']}"
        yield ""


if __name__ == "__main__":
    main()
