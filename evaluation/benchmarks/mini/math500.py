r"""mini_math500: short arithmetic, fraction, linear-equation and remainder problems in MATH's schema.

{"problem": "Solve $3x+5=26$ for $x$.", "answer": "7",
 "solution": "$3x=26-5=21$, $x=21/3=7$. The answer is $\boxed{7}$."}

Numbers are as wide as mini_gsm8k's, and none is above its LARGEST.
"""

from __future__ import annotations

import random
from math import gcd

from evaluation.benchmarks.mini.common import draw
from evaluation.benchmarks.mini.gsm8k import LARGEST, SMALLEST, change_of, factors

PRIMES = (11, 13, 17, 19)


def _sum(rng: random.Random) -> tuple[str, str, str]:
    a = rng.randint(SMALLEST, LARGEST)
    sign, b = change_of(rng, a)
    value = _changed(a, sign, b)
    return f"What is ${a}{sign}{b}$?", f"${a}{sign}{b}={value}$.", str(value)


def _changed(value: int, sign: str, change: int) -> int:
    return value + change if sign == "+" else value - change


def _two_step(rng: random.Random) -> tuple[str, str, str]:
    a, b = factors(rng)
    sign, c = change_of(rng, a * b)
    value = _changed(a * b, sign, c)
    work = f"${a}*{b}={a * b}$, ${a * b}{sign}{c}={value}$."
    if rng.random() < 0.5:
        return f"Compute ${a}*{b}{sign}{c}$.", work, str(value)
    return f"If $x={b}$, what is ${a}x{sign}{c}$?", work, str(value)


def _linear(rng: random.Random) -> tuple[str, str, str]:
    a, x = factors(rng)
    sign, b = change_of(rng, a * x)
    total, undo = _changed(a * x, sign, b), "-" if sign == "+" else "+"
    return (
        f"Solve ${a}x{sign}{b}={total}$ for $x$.",
        f"${a}x={total}{undo}{b}={a * x}$, $x={a * x}/{a}={x}$.",
        str(x),
    )


def _remainder(rng: random.Random) -> tuple[str, str, str]:
    b, q = factors(rng)
    r = rng.randrange(min(b, LARGEST - b * q + 1))
    a = b * q + r
    return f"What is the remainder when ${a}$ is divided by ${b}$?", f"${b}*{q}={b * q}$, ${a}-{b * q}={r}$.", str(r)


def _fraction_sum(rng: random.Random) -> tuple[str, str, str]:
    """One digit each over a prime denominator and below one, so that the sum is in lowest terms."""
    p = rng.choice(PRIMES)
    a = rng.randint(1, 9)
    b = rng.randint(1, min(9, p - 1 - a))
    return (
        rf"What is $\frac{{{a}}}{{{p}}}+\frac{{{b}}}{{{p}}}$?",
        f"${a}+{b}={a + b}$.",
        rf"\frac{{{a + b}}}{{{p}}}",
    )


def _lowest_terms(rng: random.Random) -> tuple[str, str, str]:
    bottom = rng.randint(3, 9)
    top = rng.choice([n for n in range(1, bottom) if gcd(n, bottom) == 1])
    k = rng.randint(2, min(9, LARGEST // bottom))
    return (
        rf"Simplify $\frac{{{top * k}}}{{{bottom * k}}}$.",
        f"${top * k}/{k}={top}$, ${bottom * k}/{k}={bottom}$.",
        rf"\frac{{{top}}}{{{bottom}}}",
    )


KINDS = (_sum, _two_step, _linear, _remainder, _fraction_sum, _lowest_terms)


def problem(rng: random.Random) -> tuple[str, str, str]:
    """A problem of any kind, its solution's formulas, and its answer."""
    return rng.choice(KINDS)(rng)


def _make(rng: random.Random) -> tuple[str, dict]:
    text, work, answer = problem(rng)
    solution = rf"{work} The answer is $\boxed{{{answer}}}$."
    return text, {"problem": text, "solution": solution, "answer": answer}


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no item is in two splits, whatever the seeds."""
    return draw(_make, split, count, seed)
