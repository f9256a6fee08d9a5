"""lm-eval's command line with this project's model and benchmarks in it.

    entropycache-lm-eval --model entropycache --model_args pretrained=tiny_llada,method=entropycache,tau=0.5,k=16 \\
        --tasks mini_gsm8k --apply_chat_template --fewshot_as_multiturn false --limit 50 --output_path results/lm_eval

lm-eval 0.4.13 looks for no plugins: its registry holds what it lists itself and what was imported (`lm_eval/models/
__init__.py`, `lm_eval/api/registry.py`). So this command imports `evaluation.lm` and hands over to lm-eval; all else
(sub-commands, options, output files) is lm-eval's. `--tasks` finds this project's benchmarks by their names, in place
of lm-eval's own of the same name, unless `--include_path` is given; `--metadata data=<folder>` names a folder of
official files.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from lm_eval.__main__ import cli_evaluate

import evaluation.lm  # noqa: F401 (registers the model)
from evaluation.benchmarks import DEFINITIONS, BenchmarkTask, load_task
from evaluation.benchmarks.task import tasks_of
from evaluation.scorers import SCORERS


class NamedTask:
    """What lm-eval makes a task from when its YAML names a class: the benchmark's own task, whose name tells which."""

    def __new__(cls, config: Mapping[str, Any]) -> BenchmarkTask:
        name, subtask = names()[config["task"]]
        loaded = load_task(name, config["metadata"].get("data"), subtasks=[subtask] if subtask else None)
        return tasks_of(loaded)[0]

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Never run; lm-eval reads here that a configuration is wanted."""


def names() -> dict[str, tuple[str, str | None]]:
    """Every lm-eval task name of ours, with its benchmark and subtask."""
    found: dict[str, tuple[str, str | None]] = {}
    for name, definition in DEFINITIONS.items():
        for subtask in definition.subtasks or (None,):
            found[f"{name}_{subtask}" if subtask else name] = (name, subtask)
    return found


def task_files() -> Iterator[tuple[str, str]]:
    """(file name, content) of the YAML files by which lm-eval knows our benchmarks."""
    for task in names():
        yield f"{task}.yaml", f"task: {task}\nclass: !function {__name__}.{NamedTask.__name__}\n"
    for name, definition in DEFINITIONS.items():
        if definition.subtasks:
            metrics = [{"metric": verdict, "weight_by_size": True} for verdict in SCORERS[name].names]
            members = [f"{name}_{subtask}" for subtask in definition.subtasks]
            yield f"{name}.yaml", yaml.safe_dump({"group": name, "task": members, "aggregate_metric_list": metrics})


def main() -> None:
    """Run lm-eval's command on this process's arguments. Bad input ends it with one line on stderr and exit code 1."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in task_files():
            Path(folder, file).write_text(content, encoding="utf-8")
        if len(sys.argv) > 1 and not any(argument.startswith("--include_path") for argument in sys.argv):
            sys.argv += ["--include_path", folder]
        try:
            cli_evaluate()
        except (ValueError, OSError, AssertionError) as error:  # lm-eval asserts what its user may ask for
            sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
