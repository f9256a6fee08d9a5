r"""mini_math500: short arithmetic, fraction, linear-equation and remainder problems in MATH's schema.

{"problem": "Solve $3x+5=26$ for $x$.", "answer": "7",
 "solution": "$3x=26-5=21$, $x=21/3=7$. The answer is $\boxed{7}$."}
"""

from __future__ import annotations

import random
from math import gcd

from evaluation.benchmarks.mini.common import draw

PRIMES = (5, 7, 11, 13, 17, 19)


def _sum(rng: random.Random) -> tuple[str, str, str]:
    a = rng.randint(2, 97)
    if rng.random() < 0.5:
        b = rng.randint(1, 99 - a)
        return f"What is ${a}+{b}$?", f"${a}+{b}={a + b}$.", str(a + b)
    b = rng.randint(1, a)
    return f"What is ${a}-{b}$?", f"${a}-{b}={a - b}$.", str(a - b)


def _two_step(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    product = a * b
    if rng.random() < 0.5:
        c = rng.randint(1, 99 - product)
        sign, value = "+", product + c
    else:
        c = rng.randint(1, product)
        sign, value = "-", product - c
    work = f"${a}*{b}={product}$, ${product}{sign}{c}={value}$."
    if rng.random() < 0.5:
        return f"Compute ${a}*{b}{sign}{c}$.", work, str(value)
    return f"If $x={b}$, what is ${a}x{sign}{c}$?", work, str(value)


def _linear(rng: random.Random) -> tuple[str, str, str]:
    a, x = rng.randint(2, 9), rng.randint(2, 9)
    if rng.random() < 0.5:
        b = rng.randint(1, 99 - a * x)
        left, total, undo = f"{a}x+{b}", a * x + b, "-"
    else:
        b = rng.randint(1, a * x - 1)
        left, total, undo = f"{a}x-{b}", a * x - b, "+"
    return f"Solve ${left}={total}$ for $x$.", f"${a}x={total}{undo}{b}={a * x}$, $x={a * x}/{a}={x}$.", str(x)


def _remainder(rng: random.Random) -> tuple[str, str, str]:
    b, q = rng.randint(3, 9), rng.randint(1, 9)
    r = rng.randrange(b)
    a = b * q + r
    return f"What is the remainder when ${a}$ is divided by ${b}$?", f"${b}*{q}={b * q}$, ${a}-{b * q}={r}$.", str(r)


def _fraction_sum(rng: random.Random) -> tuple[str, str, str]:
    """Over a prime denominator and below one, so that the sum is in lowest terms."""
    p = rng.choice(PRIMES)
    a = rng.randint(1, p - 2)
    b = rng.randint(1, p - 1 - a)
    return (
        rf"What is $\frac{{{a}}}{{{p}}}+\frac{{{b}}}{{{p}}}$?",
        f"${a}+{b}={a + b}$.",
        rf"\frac{{{a + b}}}{{{p}}}",
    )


def _lowest_terms(rng: random.Random) -> tuple[str, str, str]:
    bottom = rng.randint(3, 9)
    top = rng.choice([n for n in range(1, bottom) if gcd(n, bottom) == 1])
    k = rng.randint(2, 9)
    return (
        rf"Simplify $\frac{{{top * k}}}{{{bottom * k}}}$.",
        f"${top * k}/{k}={top}$, ${bottom * k}/{k}={bottom}$.",
        rf"\frac{{{top}}}{{{bottom}}}",
    )


KINDS = (_sum, _two_step, _linear, _remainder, _fraction_sum, _lowest_terms)


def _make(rng: random.Random) -> tuple[str, dict]:
    text, work, answer = rng.choice(KINDS)(rng)
    solution = rf"{work} The answer is $\boxed{{{answer}}}$."
    return text, {"problem": text, "solution": solution, "answer": answer}


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no item is in two splits, whatever the seeds."""
    return draw(_make, split, count, seed)
