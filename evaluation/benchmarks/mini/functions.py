"""Tiny Python functions of one or two operations: what mini_mbpp and mini_humaneval ask for.

A function's identity is its return expression, so both benchmarks agree on the split of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("solve", "run", "calc", "work", "apply", "change", "make", "task")
WORDS = ("sun", "tree", "blue", "fish", "door", "milk", "rain", "star", "wolf", "gold")


@dataclass(frozen=True)
class Function:
    """`does` says in words what `expression` computes from the one parameter."""

    does: str
    parameter: str
    expression: str

    def code(self, name: str) -> str:
        return f"def {name}({self.parameter}):\n{self.body}"

    @property
    def body(self) -> str:
        return f"    return {self.expression}"

    def asserts(self, rng: random.Random, name: str, count: int = 3) -> list[str]:
        """`count` asserts that hold by execution: different arguments, and results as different as can be."""
        call = eval(f"lambda {self.parameter}: {self.expression}", {"__builtins__": BUILTINS})
        results: dict[str, str] = {}
        while len(results) < 3 * count:
            argument = ARGUMENTS[self.parameter](rng)
            results.setdefault(repr(argument), repr(call(argument)))
        telling = {result: argument for argument, result in reversed(results.items())}.values()
        chosen = list(dict.fromkeys([*telling, *results]))[:count]
        return [f"assert {name}({argument}) == {results[argument]}" for argument in chosen]


BUILTINS = {"sum": sum, "max": max, "min": min, "len": len}
ARGUMENTS: dict[str, Callable[[random.Random], object]] = {
    "n": lambda rng: rng.randint(2, 50),
    "xs": lambda rng: [rng.randint(1, 9) for _ in range(rng.randint(2, 4))],
    "s": lambda rng: rng.choice(WORDS),
}
SIGNS = {"add": "+", "subtract": "-", "multiply by": "*", "divide by": "//", "take modulo": "%"}
SUMMARIES = {"sum": "sum", "largest": "max", "smallest": "min"}
COMPARISONS = {"greater than": ">", "less than": "<", "equal to": "=="}


def function(rng: random.Random) -> Function:
    """A function on a number, a list of numbers or a word."""
    return rng.choice((_number, _number, _each, _keep, _summary, _word))(rng)


def _operation(rng: random.Random, names: list[str] | None = None) -> tuple[str, str, int]:
    name = rng.choice(names or list(SIGNS))
    return name, SIGNS[name], rng.randint(2, 20 if name in ("add", "subtract") else 9)


def _number(rng: random.Random) -> Function:
    name, sign, k = _operation(rng)
    does, expression = f"{name} {k}", f"n {sign} {k}"
    if rng.random() < 0.8:
        name, then, k = _operation(rng)
        does = f"{does}, {name} {k}"
        expression = f"{expression} {then} {k}" if then in "+-" else f"({expression}) {then} {k}"
    return Function(f"take a number, {does}", "n", expression)


def _each(rng: random.Random) -> Function:
    name, sign, k = _operation(rng)
    return Function(f"take each number of a list, {name} {k}", "xs", f"[x {sign} {k} for x in xs]")


def _keep(rng: random.Random) -> Function:
    comparison, symbol = rng.choice(list(COMPARISONS.items()))
    limit = rng.randint(2, 8)
    if rng.random() < 0.4:
        return Function(
            f"count the numbers {comparison} {limit} in a list", "xs", f"len([x for x in xs if x {symbol} {limit}])"
        )
    name, sign, k = _operation(rng, ["add", "subtract", "multiply by"])
    return Function(
        f"keep the numbers {comparison} {limit} in a list, {name} {k}",
        "xs",
        f"[x {sign} {k} for x in xs if x {symbol} {limit}]",
    )


def _summary(rng: random.Random) -> Function:
    word, call = rng.choice(list(SUMMARIES.items()))
    name, sign, k = _operation(rng, ["add", "subtract", "multiply by"])
    return Function(f"find the {word} of a list, {name} {k}", "xs", f"{call}(xs) {sign} {k}")


def _word(rng: random.Random) -> Function:
    start, end, k = rng.randint(1, 3), rng.choice(WORDS), rng.randint(2, 3)
    does, expression = rng.choice(
        (
            (f"drop the first {start} letters of a word", f"s[{start}:] * {k}"),
            (f"take the first {start} letters of a word", f"s[:{start}] * {k}"),
            (f"add {end} to a word", f"(s + '{end}') * {k}"),
        )
    )
    return Function(f"{does}, repeat {k} times", "s", expression)
