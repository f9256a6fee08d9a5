"""mini_bbh_cot: four BIG-Bench-Hard subtasks with a short chain of thought that ends "So the answer is X."

    {"subtask": "word_sorting", "input": "Sort the following words alphabetically: List: lamp ant",
     "target": "ant lamp", "cot": "The first letters: l a. In order: a l. So the answer is boat lamp."}

Inputs have the form of the official subtasks, only shorter; the chains are the project's own.
"""

from __future__ import annotations

import random

from evaluation.benchmarks.mini.common import draw

KINDS_OF_THINGS = {
    "fruits": ("apple", "plum", "pear", "lemon"),
    "vegetables": ("onion", "carrot", "turnip", "leek"),
    "animals": ("dog", "cat", "frog", "duck"),
    "musical instruments": ("flute", "piano", "drum", "violin"),
}
COUNTS = {1: "a", 2: "two", 3: "three", 4: "four"}
WORDS = ("ant", "bird", "clock", "door", "egg", "fire", "game", "hill", "jar", "king", "lamp", "milk", "nest", "queen",
         "rope", "snow", "tree", "vase", "wolf", "zoo")  # fmt: skip
MOVES = {"forward": (0, 1), "backward": (0, -1), "left": (-1, 0), "right": (1, 0)}
COMPASS = ("forward", "right", "backward", "left")
TURNS = {"Turn right": 1, "Turn around": 2, "Turn left": 3}
TURNINGS = (
    ("Turn around",),
    ("Turn left", "Turn left"),
    ("Turn right", "Turn right"),
    ("Turn left",),
    ("Turn around",),
    ("Turn right",),
    ("Turn left", "Turn right"),
    ("Turn around", "Turn left"),
)
Step = tuple[str, str | None, int]  # the instruction, the direction it names (None: straight on), steps (0: a turn)
RETURN = "If you follow these instructions, do you return to the starting point?"


def _boolean_expressions(rng: random.Random) -> tuple[str, str, str]:
    """Brackets first, then nots, then ands, then ors: the simplified expression after each."""
    terms: list[str] = []
    opened: list[str] = []
    values: list[bool] = []
    for _ in range(rng.randint(2, 3)):
        nots = rng.choice((0, 0, 1, 1, 2))
        inner = rng.choice(("True", "False"))
        value = inner == "True"
        if rng.random() < 0.3:
            op, second = rng.choice(("and", "or")), rng.choice(("True", "False"))
            other = second == "True"
            value = (value and other) if op == "and" else (value or other)
            inner = f"( {inner} {op} {second} )"
        terms.append("not " * nots + inner)
        opened.append("not " * nots + str(value))
        values.append(value != bool(nots % 2))
    ops = [rng.choice(("and", "or")) for _ in terms[1:]]
    groups = [[values[0]]]
    for op, value in zip(ops, values[1:], strict=True):
        if op == "and":
            groups[-1].append(value)
        else:
            groups.append([value])
    question, open_brackets, simple = (
        str(made[0]) + "".join(f" {op} {term}" for op, term in zip(ops, made[1:], strict=True))
        for made in (terms, opened, values)
    )
    ored = " or ".join(str(all(group)) for group in groups)
    answer = str(any(all(group) for group in groups))
    stages = dict.fromkeys([open_brackets, simple, ored, answer])
    return f"{question} is", answer, " = ".join(stages) + "."


def _object_counting(rng: random.Random) -> tuple[str, str, str]:
    kind = rng.choice(list(KINDS_OF_THINGS))
    wanted = rng.sample(KINDS_OF_THINGS[kind], rng.randint(2, 3))
    others = [w for name, words in KINDS_OF_THINGS.items() if name != kind for w in words]
    things = [*wanted, *rng.sample(others, rng.randint(1, 2))]
    rng.shuffle(things)
    counts = {thing: rng.choice((1, 1, 2, 3, 4)) for thing in things}
    listed = [counted(thing, counts[thing]) for thing in things]
    question = f"I have {', '.join(listed[:-1])}, and {listed[-1]}. How many {kind} do I have?"
    found = [thing for thing in things if thing in wanted]
    total = sum(counts[thing] for thing in found)
    chain = ", ".join(counted(thing, counts[thing]) for thing in found)
    return question, str(total), f"I have {chain}. {'+'.join(str(counts[thing]) for thing in found)}={total}."


def counted(thing: str, count: int) -> str:
    """A thing with its count in words: "three ducks", "an onion"."""
    if count > 1:
        return f"{COUNTS[count]} {thing}s"
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


def _navigate(rng: random.Random) -> tuple[str, str, str]:
    """Half of the walks end where they started; half of them turn instead of always facing forward."""
    turning = rng.random() < 0.5
    home = rng.random() < 0.5
    first = rng.randint(1, 8)
    second = rng.randint(1, 9 - first)
    if turning:
        steps: list[Step] = [(f"Take {steps_of(first)}", None, first), *_middle_turn(rng)]
        turned = sum(TURNS[text] for text, _, n in steps if n == 0) % 4
        back = first if home and turned == 2 else second
        steps.append((f"Take {steps_of(back)}", None, back))
    else:
        way = rng.choice(COMPASS)
        away = COMPASS[(COMPASS.index(way) + 2) % 4]
        if rng.random() < 0.5:
            total = first + second
            legs = [(way, first), (way, second), (away, total if home else rng.randint(1, 9))]
        else:
            legs = [(way, first), (away if home else rng.choice(COMPASS), first if home else second)]
        rng.shuffle(legs)
        steps = [(f"Take {steps_of(n)} {direction}", direction, n) for direction, n in legs]
    x = y = facing = 0
    lines = []
    for text, direction, n in steps:
        if n == 0:
            facing = (facing + TURNS[text]) % 4
        dx, dy = MOVES[direction or COMPASS[facing]]
        x, y = x + dx * n, y + dy * n
        lines.append(f"({x}, {y}){f', facing {COMPASS[facing]}' if turning else ''}.")
    answer = "Yes" if (x, y) == (0, 0) else "No"
    start = "" if turning else " Always face forward."
    question = f"{RETURN}{start} {' '.join(f'{text}.' for text, _, _ in steps)}\nOptions:\n- Yes\n- No"
    return question, answer, "\n".join(lines)


def steps_of(count: int) -> str:
    """ "1 step", "3 steps"."""
    return f"{count} step{'s' if count > 1 else ''}"


def _middle_turn(rng: random.Random) -> list[Step]:
    return [(turn, None, 0) for turn in rng.choice(TURNINGS)]


def _word_sorting(rng: random.Random) -> tuple[str, str, str]:
    """Words that start with different letters: their letters as they stand, then in order."""
    words = rng.sample(WORDS, rng.randint(2, 4))
    ordered = sorted(words)
    return (
        f"Sort the following words alphabetically: List: {' '.join(words)}",
        " ".join(ordered),
        f"The first letters: {' '.join(word[0] for word in words)}. In order: {' '.join(word[0] for word in ordered)}.",
    )


SUBTASKS = {
    "boolean_expressions": _boolean_expressions,
    "object_counting": _object_counting,
    "navigate": _navigate,
    "word_sorting": _word_sorting,
}


def _make(rng: random.Random) -> tuple[str, dict]:
    subtask = rng.choice(list(SUBTASKS))
    question, target, chain = SUBTASKS[subtask](rng)
    return question, {
        "subtask": subtask,
        "input": question,
        "target": target,
        "cot": f"{chain} So the answer is {target}.",
    }


def items(split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of "train", "fewshot" or "test"; no item is in two splits, whatever the seeds."""
    return draw(_make, split, count, seed)
