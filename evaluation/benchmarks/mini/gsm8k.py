"""mini_gsm8k: word problems of one to three steps with a worked answer, in GSM8K's schema.

    {"question": "Ann has 27 pens. Ann buys 38 more. How many pens does Ann have now?",
     "answer": "27+38=65 pens\\n#### 65"}

Sums and differences of numbers below 100, products of one-digit numbers; every number on the way is between 1 and 99.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from evaluation.benchmarks.mini.common import draw

NAMES = (
    "Ann",
    "Ben",
    "Cara",
    "Dan",
    "Eva",
    "Finn",
    "Gina",
    "Hugo",
    "Iris",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Paul",
)
THINGS = ("pens", "cups", "books", "coins", "cards", "shells", "apples", "stamps", "stones", "balls", "keys", "hats")
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
        if last and start in ("times", "more", "fewer") and steps and rng.random() < 0.4:
            first = int(sentences[0].split()[2])
            if first + value <= 99:
                steps.append((f"{first}+{value}", first + value))
                question = f"How many {thing} do {other} and {who} have in total?"
                break
        if last and rng.random() < 0.25 and (parts := [d for d in range(2, 10) if value % d == 0 and value // d <= 9]):
            d = rng.choice(parts)
            steps.append((f"{value}/{d}", value // d))
            sentences.append(f"{who} puts them into {d} equal {rng.choice(CONTAINERS)}.")
            question = f"How many {thing} are in each?"
            break
        if rng.random() < value / 99:
            change = rng.randint(1, value - 1) if value > 1 else 0
            sign, verb = "-", rng.choice(LOSSES)
        else:
            change, sign, verb = rng.randint(1, 99 - value), "+", rng.choice(GAINS)
        if not change:
            continue
        result = value + change if sign == "+" else value - change
        steps.append((f"{value}{sign}{change}", result))
        sentences.append(f"{who} {verb} {change}{' more' if sign == '+' else ''}.")
        value = result
    return Problem(" ".join([*sentences, question]), tuple(steps), thing)


def _start(
    rng: random.Random, kind: str, who: str, other: str, thing: str
) -> tuple[list[str], list[tuple[str, int]], int]:
    """Sentences, steps and the count that `who` starts with."""
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    if kind == "groups":
        return [f"{who} has {a} {rng.choice(CONTAINERS)} of {b} {thing}."], [(f"{a}*{b}", a * b)], a * b
    if kind == "times":
        return [f"{other} has {a} {thing}.", f"{who} has {b} times as many."], [(f"{a}*{b}", a * b)], a * b
    low = rng.randint(3, 90)
    if kind == "plain":
        return [f"{who} has {low} {thing}."], [], low
    change = rng.randint(1, 99 - low if kind == "more" else low - 1)
    sign, total = ("+", low + change) if kind == "more" else ("-", low - change)
    return [f"{other} has {low} {thing}.", f"{who} has {change} {kind}."], [(f"{low}{sign}{change}", total)], total


def _make(rng: random.Random) -> tuple[str, dict]:
    made = problem(rng)
    lines = [f"{expression}={value} {made.thing}" for expression, value in made.steps]
    return made.question, {"question": made.question, "answer": "\n".join([*lines, f"#### {made.answer}"])}


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no item is in two splits, whatever the seeds."""
    return draw(_make, split, count, seed)
