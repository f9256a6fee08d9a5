"""mini_gsm8k: word problems of one to three steps with a worked answer, in GSM8K's schema.

    {"question": "Ann has 27 pens. Ann buys 18 more. How many pens does Ann have now?",
     "answer": "27+18=45\\n#### 45"}

Counts have two digits, SMALLEST to LARGEST, factors one, and so every calculation of a kind is as wide as any other.
That spares a small model one thing only: a canvas of masks does not say how many digits a number will have.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from evaluation.benchmarks.mini.common import draw

SMALLEST, LARGEST = 10, 49
NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo")
THINGS = ("pens", "cups", "books", "coins", "cards", "shells", "apples", "stamps")
CONTAINERS = ("bags", "boxes")
GAINS = ("buys", "finds", "gets")
LOSSES = ("sells", "loses", "uses")


@dataclass(frozen=True)
class Problem:
    """A question, the calculations in order as (expression, value), and what is counted."""

    question: str
    steps: tuple[tuple[str, int], ...]
    thing: str

    @property
    def answer(self) -> int:
        return self.steps[-1][1]


def problem(rng: random.Random) -> Problem:
    """A word problem: how the count starts, one change for each further step, and what is asked."""
    who, other = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    wanted = rng.choice((1, 2, 2, 3))
    start = rng.choice(("plain", "groups", "times", "more", "fewer"))
    sentences, steps, value = _start(rng, start, who, other, thing)
    question = f"How many {thing} does {who} have now?"
    while len(steps) < wanted:
        last = len(steps) == wanted - 1
        if last and start in ("more", "fewer") and steps and rng.random() < 0.4:
            first = int(sentences[0].split()[2])
            if first + value <= LARGEST:
                steps.append((f"{first}+{value}", first + value))
                question = f"How many {thing} do {other} and {who} have in total?"
                break
        if last and rng.random() < 0.25 and (parts := [d for d in range(2, 10) if value % d == 0 and value // d <= 9]):
            d = rng.choice(parts)
            steps.append((f"{value}/{d}", value // d))
            sentences.append(f"{who} puts them into {d} equal {rng.choice(CONTAINERS)}.")
            question = f"How many {thing} are in each?"
            break
        sign, change = change_of(rng, value)
        sentences.append(f"{who} {rng.choice(GAINS if sign == '+' else LOSSES)} {change}.")
        steps.append((f"{value}{sign}{change}", value + change if sign == "+" else value - change))
        value = steps[-1][1]
    return Problem(" ".join([*sentences, question]), tuple(steps), thing)


def change_of(rng: random.Random, value: int) -> tuple[str, int]:
    """A two-digit change of a count that leaves it between SMALLEST and LARGEST: its sign and size."""
    up, down = LARGEST - value, value - SMALLEST
    sign = rng.choice([s for s, room in (("+", up), ("-", down)) if room >= SMALLEST])
    return sign, rng.randint(SMALLEST, up if sign == "+" else down)


def factors(rng: random.Random) -> tuple[int, int]:
    """Two one-digit numbers whose product has two digits and leaves room for a change."""
    return rng.choice([(a, b) for a in range(2, 10) for b in range(2, 10) if SMALLEST <= a * b <= LARGEST])


def _start(
    rng: random.Random, kind: str, who: str, other: str, thing: str
) -> tuple[list[str], list[tuple[str, int]], int]:
    """Sentences, steps and the count that `who` starts with."""
    a, b = factors(rng)
    if kind == "groups":
        return [f"{who} has {a} {rng.choice(CONTAINERS)} of {b} {thing}."], [(f"{a}*{b}", a * b)], a * b
    if kind == "times":
        return [f"{other} has {a} {thing}.", f"{who} has {b} times as many."], [(f"{a}*{b}", a * b)], a * b
    low = rng.randint(SMALLEST, LARGEST - SMALLEST) if kind == "more" else rng.randint(2 * SMALLEST, LARGEST)
    if kind == "plain":
        return [f"{who} has {low} {thing}."], [], low
    if kind == "more":
        change = rng.randint(SMALLEST, LARGEST - low)
        sign, total = "+", low + change
    else:
        change = rng.randint(SMALLEST, low - SMALLEST)
        sign, total = "-", low - change
    return [f"{other} has {low} {thing}.", f"{who} has {change} {kind}."], [(f"{low}{sign}{change}", total)], total


def _make(rng: random.Random) -> tuple[str, dict]:
    made = problem(rng)
    lines = [f"{expression}={value}" for expression, value in made.steps]
    return made.question, {"question": made.question, "answer": "\n".join([*lines, f"#### {made.answer}"])}


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no item is in two splits, whatever the seeds."""
    return draw(_make, split, count, seed)
