"""mini_gsm8k_cot: the problems of mini_gsm8k with the answer of the chain-of-thought form.

    {"question": "...", "answer": "27+38=65. 65-12=53. The answer is 53."}

An item's split is that of its question, so a question that mini_gsm8k is tested on is never trained on here.
"""

from __future__ import annotations

import random

from evaluation.benchmarks.mini.common import draw
from evaluation.benchmarks.mini.gsm8k import problem


def _make(rng: random.Random) -> tuple[str, dict]:
    made = problem(rng)
    chain = " ".join(f"{expression}={value}." for expression, value in made.steps)
    return made.question, {"question": made.question, "answer": f"{chain} The answer is {made.answer}."}


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no item is in two splits, whatever the seeds."""
    return draw(_make, split, count, seed)
