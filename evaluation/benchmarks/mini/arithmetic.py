"""Bare calculations as they occur in mini_gsm8k, for training alone: many results to learn in few tokens."""

from __future__ import annotations

import random

from evaluation.benchmarks.mini.gsm8k import problem


def items(count: int, seed: int = 0) -> list[dict]:
    """`count` calculations, {"expression": "27+38", "value": "65"}; they may repeat, since no test is made of them."""
    rng = random.Random(f"arithmetic/{seed}")
    steps = [rng.choice(problem(rng).steps) for _ in range(count)]
    return [{"expression": expression, "value": str(value)} for expression, value in steps]
