r"""mini_mbpp: one-line functions to write from a sentence and three asserts, in MBPP's schema.

{"task_id": 0, "text": "Write a function to find the sum of a list, add 3.",
 "code": "def calc(xs):\n    return sum(xs) + 3",
 "test_list": ["assert calc([4, 7]) == 14", ...], "test_setup_code": ""}
"""

from __future__ import annotations

import random

from evaluation.benchmarks.mini.common import draw
from evaluation.benchmarks.mini.functions import NAMES, function


def _make(rng: random.Random) -> tuple[str, dict]:
    made, name = function(rng), rng.choice(NAMES)
    return made.expression, {
        "text": f"Write a function to {made.does}.",
        "code": made.code(name),
        "test_list": made.asserts(rng, name),
        "test_setup_code": "",
    }


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no function is in two splits, whatever the seeds."""
    return [{"task_id": i, **item} for i, item in enumerate(draw(_make, split, count, seed))]
