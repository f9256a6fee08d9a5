"""Exercises for training alone, no benchmarks: many results to learn in few tokens. Items may repeat."""

from __future__ import annotations

import random
from collections.abc import Callable

from evaluation.benchmarks.mini import bbh_cot, functions, gsm8k

WORDS = (*bbh_cot.WORDS, *gsm8k.THINGS, *functions.WORDS, "True", "False", "and", "or", "not", "+", "-", "*", "/")


def arithmetic(rng: random.Random) -> dict:
    """A calculation as it occurs in mini_gsm8k: {"given": "27+18", "result": "45"}."""
    expression, value = rng.choice(gsm8k.problem(rng).steps)
    return {"given": expression, "result": str(value)}


def copying(rng: random.Random) -> dict:
    """Words and numbers to write again: {"given": "tree 31 or pens", "result": "tree 31 or pens"}."""
    words = [
        rng.choice(WORDS) if rng.random() < 0.8 else str(rng.randint(1, gsm8k.LARGEST))
        for _ in range(rng.randint(2, 8))
    ]
    return {"given": " ".join(words), "result": " ".join(words)}


EXERCISES: dict[str, Callable[[random.Random], dict]] = {"arithmetic": arithmetic, "copying": copying}


def items(name: str, count: int, seed: int = 0) -> list[dict]:
    """`count` items of one exercise, the same for the same arguments."""
    rng = random.Random(f"{name}/{seed}")
    return [EXERCISES[name](rng) for _ in range(count)]
