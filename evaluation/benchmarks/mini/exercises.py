"""Exercises for training alone, no benchmarks: many results to learn in few tokens. Items may repeat."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TypeVar

from evaluation.benchmarks.mini import bbh_cot, functions, gsm8k, math500
from evaluation.benchmarks.mini.common import split_of

T = TypeVar("T")

WORDS = (*bbh_cot.WORDS, *gsm8k.THINGS, *functions.WORDS, "True", "False", "and", "or", "not", "+", "-", "*", "/")


def arithmetic(rng: random.Random) -> dict:
    """A calculation as it occurs in mini_gsm8k: {"given": "27+18", "result": "45"}."""
    expression, value = rng.choice(gsm8k.problem(rng).steps)
    return {"given": expression, "result": str(value)}


def lines(rng: random.Random) -> dict:
    r"""Calculations to write out as in mini_gsm8k's answers or mini_math500's, every result in one place alone:
    {"given": "27+18 45-10", "result": "27+18=45\n45-10=35"}."""
    made = [arithmetic(rng) for _ in range(rng.randint(2, 5))]
    written = [_solved(one) for one in made]
    given = " ".join(one["given"] for one in made)
    if rng.random() < 0.5:
        return {"given": f"${given}$", "result": ", ".join(f"${line}$" for line in written) + "."}
    return {"given": given, "result": "\n".join(written)}


def calculation(rng: random.Random) -> dict:
    """A calculation behind words, its numbers or other calculations: {"given": "27 18: tree. 27+18", "result": "45"}.

    What was learnt on bare calculations fails among other text, until it has been seen there.
    """
    one = arithmetic(rng)
    numbers = re.findall(r"\d+", one["given"])
    before = "".join(rng.choice(BEFORE)(rng, one["given"], numbers) for _ in range(rng.randint(0, 3)))
    opening, closing = rng.choice((("", ""), ("", "."), ("$", "$"), ("$", "$.")))
    return {"given": f"{before}{opening}{one['given']}", "result": f"{one['result']}{closing}"}


def cloze(rng: random.Random) -> dict:
    r"""A calculation behind sentences of the benchmarks, or in its place in a worked answer, one result missing:
    {"given": "Ben buys 12. Answer: 27+18", "result": "45"}. The sentences are those of training items."""
    if rng.random() < 0.3:
        made = _story(rng)
        at = rng.randrange(len(made.steps))
        before = "".join(f"{expression}={value}\n" for expression, value in made.steps[:at])
        expression, value = made.steps[at]
        return {"given": f"Question: {made.question}\nAnswer: {before}{expression}", "result": str(value)}
    sentences = [rng.choice(SENTENCES)(rng) for _ in range(rng.randint(1, 2))]
    one = calculation(rng)
    return {"given": "".join([*sentences, one["given"]]), "result": one["result"]}


def worked(rng: random.Random) -> dict:
    r"""Calculations to write out behind sentences of the benchmarks, in the form of one of their answers:
    {"given": "Ben buys 12. 27+18 45-10", "result": "27+18=45. 45-10=35."}."""
    made = [arithmetic(rng) for _ in range(rng.randint(1, 3))]
    before = rng.choice(SENTENCES)(rng) if rng.random() < 0.7 else ""
    start, between, end = rng.choice((("", "\n", ""), ("", ". ", "."), ("$", "$, $", "$.")))
    written = between.join(_solved(one) for one in made)
    return {"given": before + " ".join(one["given"] for one in made), "result": f"{start}{written}{end}"}


def formulas(rng: random.Random) -> dict:
    """A training problem of mini_math500 and its formulas, the answer not said again:
    {"given": "What is $27+18$?", "result": "$27+18=45$."}."""
    text, work, _ = _problem(rng)
    return {"given": text, "result": work}


def chains(rng: random.Random) -> dict:
    r"""A training question of mini_bbh_cot without its frame, and the chain of thought alone:
    {"given": "animals: two ducks, a plum, and a frog", "result": "I have two ducks, a frog. 2+1=3."}."""
    name = rng.choices(list(FRAMES), [0.4, 0.4, 0.1, 0.1])[0]
    question, _, chain = _training(bbh_cot.SUBTASKS[name], lambda made: made[0], rng)
    return {"given": re.sub(*FRAMES[name], question), "result": chain}


def step(rng: random.Random) -> dict:
    """One step of a chain of thought of mini_bbh_cot: {"given": "two ducks, and a plum: duck", "result": "2"}."""
    given, result = rng.choice((_count, _move, _truth))(rng)
    return {"given": given, "result": result}


def _count(rng: random.Random) -> tuple[str, str]:
    words = [word for words in bbh_cot.KINDS_OF_THINGS.values() for word in words]
    counts = {word: rng.choice((1, 2, 3, 4)) for word in rng.sample(words, rng.randint(2, 5))}
    *first, last = (bbh_cot.counted(word, count) for word, count in counts.items())
    asked = rng.choice(list(counts))
    return f"{', '.join(first)}, and {last}: {asked}", str(counts[asked])


def _move(rng: random.Random) -> tuple[str, str]:
    """A move along one axis, or straight on, or a turn."""
    direction = rng.choice(bbh_cot.COMPASS)
    dx, dy = bbh_cot.MOVES[direction]
    count = rng.randint(1, 9)
    along = rng.randint(-9 + (count if dx + dy < 0 else 0), 9 - (count if dx + dy > 0 else 0))
    across = rng.choice((0, 0, 0, rng.randint(-8, 8)))
    x, y = (along, across) if dx else (across, along)
    moved = f"({x + dx * count}, {y + dy * count})"
    kind = rng.random()
    if kind < 0.4:
        return f"({x}, {y}). Take {bbh_cot.steps_of(count)} {direction}.", f"{moved}."
    if kind < 0.75:
        return f"({x}, {y}), facing {direction}. Take {bbh_cot.steps_of(count)}.", f"{moved}, facing {direction}."
    turn, quarters = rng.choice(list(bbh_cot.TURNS.items()))
    after = bbh_cot.COMPASS[(bbh_cot.COMPASS.index(direction) + quarters) % 4]
    return f"({x}, {y}), facing {direction}. {turn}.", f"({x}, {y}), facing {after}."


def _truth(rng: random.Random) -> tuple[str, str]:
    """A term with nots and brackets, or two values joined."""
    one, other = rng.choice(("True", "False")), rng.choice(("True", "False"))
    joined = f"{one} {rng.choice(('and', 'or'))} {other}"
    term = rng.choice((joined, one, f"( {joined} )"))
    given = term if term == joined else "not " * rng.randint(0, 2) + term
    return given, str(eval(given, {}))


# what of a question is left where its frame is taken away
FRAMES = {
    "object_counting": (r"I have (.*)\. How many (.*) do I have\?", r"\2: \1"),
    "navigate": (rf"{re.escape(bbh_cot.RETURN)} ([^\n]*)\nOptions:[^?]*", r"\1"),
    "word_sorting": (".* List: ", "Sort: "),
    "boolean_expressions": (" is$", ""),
}


def _training(make: Callable[[random.Random], T], key: Callable[[T], str], rng: random.Random) -> T:
    """The next problem whose question belongs to the training split."""
    while split_of(key(made := make(rng))) != "train":
        pass
    return made


def _story(rng: random.Random) -> gsm8k.Problem:
    return _training(gsm8k.problem, lambda made: made.question, rng)


def _problem(rng: random.Random) -> tuple[str, str, str]:
    return _training(math500.problem, lambda made: made[0], rng)


def _solved(one: dict) -> str:
    return f"{one['given']}={one['result']}"


# what may stand before a calculation: given its expression and the numbers in it
BEFORE: tuple[Callable[[random.Random, str, list[str]], str], ...] = (
    lambda rng, given, numbers: f"{' '.join(rng.sample(WORDS, rng.randint(1, 3)))}. ",
    lambda rng, given, numbers: f"{rng.choice(WORDS)} {rng.choice(numbers)} {rng.choice(WORDS)}. ",
    lambda rng, given, numbers: f"{' '.join(numbers)}: ",
    lambda rng, given, numbers: f"{given}: ",
    lambda rng, given, numbers: f"{_solved(arithmetic(rng))}\n",
    lambda rng, given, numbers: f"${_solved(arithmetic(rng))}$, ",
)
SENTENCES: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: rng.choice(re.split(r"(?<=[.?]) ", _story(rng).question)) + " ",
    lambda rng: _story(rng).question.rpartition(". ")[2] + rng.choice((" ", "\nAnswer: ", "\nA: ")),
    lambda rng: _problem(rng)[0] + rng.choice((" ", "\n\nSolution: ")),
    lambda rng: rng.choice(("Question: ", "Q: ", "Problem:\n", "Answer: ", "A: ", "Solution: ")),
)


def copying(rng: random.Random) -> dict:
    """Words and numbers to write again: {"given": "tree 31 or pens", "result": "tree 31 or pens"}."""
    words = [
        rng.choice(WORDS) if rng.random() < 0.8 else str(rng.randint(1, gsm8k.LARGEST))
        for _ in range(rng.randint(2, 8))
    ]
    return {"given": " ".join(words), "result": " ".join(words)}


EXERCISES: dict[str, Callable[[random.Random], dict]] = {
    "arithmetic": arithmetic,
    "calculation": calculation,
    "chains": chains,
    "cloze": cloze,
    "copying": copying,
    "formulas": formulas,
    "lines": lines,
    "step": step,
    "worked": worked,
}


def items(name: str, count: int, seed: int = 0) -> list[dict]:
    """`count` items of one exercise, the same for the same arguments."""
    rng = random.Random(f"{name}/{seed}")
    return [EXERCISES[name](rng) for _ in range(count)]
