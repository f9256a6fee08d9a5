"""mini_humaneval: a signature and a one-line docstring whose body is to be written, in HumanEval's schema.

task_id             mini_humaneval/test/0
prompt              the line `def calc(xs):` and the docstring `Find the sum of a list, add 3.`
entry_point         calc
canonical_solution  the line `    return sum(xs) + 3`
test                `def check(candidate):` and three lines like `    assert candidate([4, 7]) == 14`
"""

from __future__ import annotations

import random

from evaluation.benchmarks.mini.common import draw
from evaluation.benchmarks.mini.functions import NAMES, function


def _make(rng: random.Random) -> tuple[str, dict]:
    made, name = function(rng), rng.choice(NAMES)
    checks = "".join(f"    {line}\n" for line in made.asserts(rng, "candidate"))
    return made.expression, {
        "prompt": f'def {name}({made.parameter}):\n    """{made.does[0].upper()}{made.does[1:]}."""\n',
        "entry_point": name,
        "canonical_solution": f"{made.body}\n",
        "test": f"def check(candidate):\n{checks}",
    }


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no function is in two splits, whatever the seeds."""
    drawn = draw(_make, split, count, seed)
    return [{"task_id": f"mini_humaneval/{split}/{i}", **item} for i, item in enumerate(drawn)]
