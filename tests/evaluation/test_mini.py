"""The mini generators: splits that cannot overlap, and gold answers that hold by a second way of computing them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropycache.models.tokenizer import Tokenizer
from evaluation.benchmarks import mini
from evaluation.benchmarks.mini.bbh_cot import KINDS_OF_THINGS
from evaluation.benchmarks.mini.common import MAX_FRUITLESS, SPLITS, draw
from evaluation.benchmarks.mini.gsm8k import LARGEST
from evaluation.benchmarks.mini.math500 import KINDS
from tests.conftest import ROOT

NAMES = list(mini.GENERATORS)
seeds = st.integers(0, 10_000)


def content(name: str, doc: dict) -> str:
    """What makes an item itself: for functions what is computed, whatever the name and the asserts."""
    if "code" in doc:
        return doc["code"].partition("return ")[2]
    if "canonical_solution" in doc:
        return doc["canonical_solution"].partition("return ")[2].strip()
    return (
        mini.prompt(name, doc)
        .removeprefix("Question: ")
        .removeprefix("Q: ")
        .removesuffix("\nA:")
        .removesuffix("\nAnswer:")
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=5)
@given(seeds=st.tuples(seeds, seeds, seeds))
def test_no_item_is_in_two_splits_whatever_the_seeds(name: str, seeds: tuple[int, int, int]) -> None:
    drawn = [
        {content(name, doc) for doc in mini.items(name, split, 40, seed)}
        for split, seed in zip(SPLITS, seeds, strict=True)
    ]
    assert all(len(docs) == 40 for docs in drawn)
    assert not (drawn[0] & drawn[1] or drawn[0] & drawn[2] or drawn[1] & drawn[2])


@pytest.mark.parametrize("pair", [("mini_gsm8k", "mini_gsm8k_cot"), ("mini_mbpp", "mini_humaneval")])
def test_benchmarks_over_the_same_problems_agree_on_the_splits(pair: tuple[str, str]) -> None:
    one, other = pair
    train = {content(one, doc) for doc in mini.items(one, "train", 300, seed=1)}
    test = {content(other, doc) for doc in mini.items(other, "test", 150, seed=1)}
    assert not train & test


@pytest.mark.parametrize("name", NAMES)
def test_the_same_arguments_give_the_same_items_and_more_items_start_with_them(name: str) -> None:
    docs = mini.items(name, "test", 20, seed=3)
    assert docs == mini.items(name, "test", 20, seed=3) == mini.items(name, "test", 30, seed=3)[:20]
    assert docs != mini.items(name, "test", 20, seed=4)


def test_bad_requests_are_named() -> None:
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        mini.items("mini_gsm8k", "dev", 1)
    with pytest.raises(ValueError, match="unknown mini benchmark 'mini_arc'"):
        mini.items("mini_arc", "test", 1)
    with pytest.raises(ValueError, match="no more than 0 different items of split 'test'"):
        draw(lambda rng: ("always in training", {}), "test", 1, 0)
    assert MAX_FRUITLESS > 1000


def check_equations(text: str) -> list[int]:
    """Every `a op b=c` of a text holds; their results in order."""
    found = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", text)
    for a, sign, b, c in found:
        exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[sign]
        assert exact == int(c), text
    return [int(c) for *_, c in found]


@given(seed=seeds)
@settings(max_examples=5)
def test_gsm8k_answers_follow_from_their_steps(seed: int) -> None:
    for doc in mini.items("mini_gsm8k", "train", 40, seed):
        steps = check_equations(doc["answer"])
        assert 1 <= len(steps) <= 3
        assert doc["answer"].endswith(f"#### {steps[-1]}")
        assert all(0 < value <= LARGEST for value in steps)
        given_numbers = set(re.findall(r"\d+", doc["question"]))
        assert set(re.findall(r"\d+", doc["answer"])) - {str(v) for v in steps} <= given_numbers
    for doc in mini.items("mini_gsm8k_cot", "train", 40, seed):
        assert doc["answer"].endswith(f"The answer is {check_equations(doc['answer'])[-1]}.")


def test_math_answers_hold_when_put_back_into_the_problem() -> None:
    for doc in mini.items("mini_math500", "test", 300):
        problem, answer = doc["problem"], doc["answer"]
        assert doc["solution"].endswith(f"\\boxed{{{answer}}}$.")
        check_equations(doc["solution"].replace("$", " "))
        assert all(int(n) <= LARGEST for n in re.findall(r"\d+", problem + doc["solution"]))
        if found := re.fullmatch(r"Solve \$(\d+)x([-+]\d+)=(\d+)\$ for \$x\$\.", problem):
            a, b, c = map(int, found.groups())
            assert a * int(answer) + b == c
        elif found := re.fullmatch(r"What is the remainder when \$(\d+)\$ is divided by \$(\d+)\$\?", problem):
            assert int(found[1]) % int(found[2]) == int(answer)
        elif found := re.fullmatch(r"If \$x=(\d+)\$, what is \$(\d+)x([-+]\d+)\$\?", problem):
            x, a, b = map(int, found.groups())
            assert a * x + b == int(answer)
        elif found := re.fullmatch(r"(?:What is|Compute) \$([-+*\d]+)\$[?.]", problem):
            assert eval(found[1]) == int(answer)
        else:
            numbers = [int(n) for n in re.findall(r"\d+", problem)]
            top, bottom = map(int, re.findall(r"\d+", answer))
            if problem.startswith("Simplify"):
                assert numbers[0] * bottom == top * numbers[1]
                assert all(top % d or bottom % d for d in range(2, 10))
            else:
                assert (numbers[0] + numbers[2], numbers[1]) == (top, bottom)
    assert len(KINDS) == 6


def test_gold_functions_pass_their_asserts_and_constants_do_not() -> None:
    for doc in mini.items("mini_mbpp", "test", 150):
        space: dict = {}
        exec(doc["code"], space)
        for line in doc["test_list"]:
            exec(line, space)
        assert len(doc["test_list"]) == 3
    told_apart = [
        len({line.partition(" == ")[2] for line in doc["test_list"]}) > 1
        for doc in mini.items("mini_mbpp", "test", 150)
    ]
    assert sum(told_apart) > 0.9 * len(told_apart)
    for doc in mini.items("mini_humaneval", "test", 150):
        space = {}
        exec(doc["prompt"] + doc["canonical_solution"] + doc["test"] + f"check({doc['entry_point']})", space)


def test_bbh_targets_hold_by_a_second_way() -> None:
    seen = set()
    for doc in mini.items("mini_bbh_cot", "test", 300):
        question, target = doc["input"], doc["target"]
        seen.add(doc["subtask"])
        assert doc["cot"].endswith(f"So the answer is {target}.")
        if doc["subtask"] == "boolean_expressions":
            assert str(eval(question.removesuffix(" is"))) == target
            stages = doc["cot"].partition(". So")[0].split(" = ")
            assert len({eval(stage) for stage in stages}) == 1
        elif doc["subtask"] == "word_sorting":
            words = question.partition("List: ")[2].split()
            assert target == " ".join(sorted(words))
        elif doc["subtask"] == "object_counting":
            asked = KINDS_OF_THINGS[question.partition("How many ")[2].removesuffix(" do I have?")]
            counts = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}
            for text in (question, doc["cot"]):
                counted = re.findall(r"\b(an?|two|three|four) (\w+?)s?\b", text)
                assert str(sum(counts[count] for count, thing in counted if thing in asked)) == target
        else:
            assert (walk(question) == 0) == (target == "Yes")
    assert seen == {"boolean_expressions", "object_counting", "navigate", "word_sorting"}


def walk(question: str) -> complex:
    """Where a navigation ends, as a complex number."""
    place, facing = 0j, 1j
    ways = {"forward": 1j, "backward": -1j, "left": -1, "right": 1}
    for step in re.findall(r"(Turn \w+|Take [^.]*)\.", question):
        match step.split():
            case ["Turn", where]:
                facing *= {"left": 1j, "right": -1j, "around": -1}[where]
            case ["Take", count, _]:
                place += int(count) * facing
            case ["Take", count, _, way]:
                place += int(count) * ways[way]
    return place


@pytest.mark.parametrize("family", ["tiny_llada", "tiny_dream"])
@pytest.mark.parametrize("name", NAMES)
def test_every_answer_fits_its_canvas_and_survives_the_tokenizer(name: str, family: str) -> None:
    tokenizer = Tokenizer(ROOT / "entropycache" / "assets" / family)
    for doc in mini.items(name, "test", 100):
        ids = tokenizer.encode(mini.answer(name, doc))
        assert len(ids) < mini.CANVAS[name]
        assert tokenizer.decode(ids) == mini.answer(name, doc)


def test_prompts_have_the_form_of_the_official_tasks() -> None:
    shots = mini.items("mini_gsm8k", "fewshot", 2)
    doc = mini.items("mini_gsm8k", "test", 1)[0]
    text = mini.prompt("mini_gsm8k", doc, shots)
    assert text.split("\n\n") == [
        *(f"Question: {shot['question']}\nAnswer: {shot['answer']}" for shot in shots),
        f"Question: {doc['question']}\nAnswer:",
    ]
    code = mini.items("mini_mbpp", "test", 1)[0]
    assert mini.prompt("mini_mbpp", code).endswith(code["test_list"][2] + "\n[BEGIN]\n")
    assert mini.answer("mini_mbpp", code).endswith("\n[DONE]")
