"""What a model is shown, byte for byte. Run this file to write the golden prompts anew."""

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from entropycache.models import dream, llada
from evaluation.benchmarks import DEFINITIONS, load_task, requests
from evaluation.benchmarks.task import tasks_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden_prompts"
TEMPLATES: dict[str, Callable[[str], str] | None] = {
    "none": None,
    "llada": lambda content: llada.CHAT_TEMPLATE.replace("{content}", content),
    "dream": lambda content: dream.CHAT_TEMPLATE.replace("{content}", content),
}
SHOTS = {
    "gsm8k": 4,
    "gsm8k_cot": 8,
    "math500": 4,
    "mbpp": 3,
    "humaneval": 0,
    "humaneval_instruct": 0,
    "bbh_cot": 3,
}
MARKS = {  # what stands once in each solved or open question
    "gsm8k": "Question: ",
    "gsm8k_cot": "Q: ",
    "math500": "Problem:\n",
    "mbpp": "[BEGIN]\n",
    "humaneval": '    """ Check if',
    "humaneval_instruct": "Write a solution to the following problem",
    "bbh_cot": "Q: ",
}


@cache
def rendered(name: str, template: str, data: Path = GOLDEN / "data") -> tuple[str, int]:
    """The prompt of item 0 and its number of shots."""
    definition = DEFINITIONS[name]
    task = load_task(
        name,
        None if definition.generator else str(data),
        count=8 if definition.generator else None,
        subtasks=definition.subtasks[:1] or None,
    )
    return requests(task, 1, TEMPLATES[template])[0].prompt_text, tasks_of(task)[0].config.num_fewshot


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_golden_prompt(name: str, template: str) -> None:
    prompt, shots = rendered(name, template)
    golden = (GOLDEN / f"{name}.{shots}shot.{template}.txt").read_bytes()
    assert prompt.encode() == golden
    assert shots == SHOTS[name.removeprefix("mini_")]


@pytest.mark.parametrize("name", SHOTS)
def test_shots_and_one_open_question(name: str) -> None:
    prompt, shots = rendered(name, "none")
    assert prompt.count(MARKS[name]) == shots + 1


def test_there_is_no_golden_prompt_of_anything_else() -> None:
    found = {path.name.partition(".")[0] for path in GOLDEN.glob("*.txt")}
    assert found == set(DEFINITIONS)
    assert len(list(GOLDEN.glob("*.txt"))) == len(DEFINITIONS) * len(TEMPLATES)


@pytest.mark.parametrize("template", ["llada", "dream"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_chat_prompt_is_the_plain_one_in_one_user_turn(name: str, template: str) -> None:
    plain, _ = rendered(name, "none")
    wrapped, _ = rendered(name, template)
    chat = TEMPLATES[template]
    assert chat is not None
    head, tail = chat("\0").split("\0")
    begun = "Here is the completed function:" if name == "humaneval_instruct" else None
    user, model = (plain, "") if begun is None else (plain[: plain.index(begun)], plain[plain.index(begun) :])
    assert wrapped == head + user + tail + model


@pytest.mark.shared
@pytest.mark.parametrize("name", SHOTS)
def test_the_items_kept_here_are_the_official_ones(name: str, shared: Path) -> None:
    assert rendered(name, "none", shared / "data") == rendered(name, "none")


def test_the_items_kept_here_are_no_more_than_needed() -> None:
    data = GOLDEN / "data"
    lines = {path.name: path.read_text(encoding="utf-8").count("\n") for path in data.glob("*/*.jsonl")}
    assert lines == {"test.jsonl": 1, "train.jsonl": 4, "mbpp.jsonl": 1}
    assert gzip.decompress((data / "humaneval/HumanEval.jsonl.gz").read_bytes()).count(b"\n") == 1
    assert len(json.loads((data / "bbh/boolean_expressions.json").read_text())["examples"]) == 1


if __name__ == "__main__":
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for benchmark in DEFINITIONS:
        for kind in TEMPLATES:
            text, number = rendered(benchmark, kind)
            (GOLDEN / f"{benchmark}.{number}shot.{kind}.txt").write_bytes(text.encode())
