"""Gold answers of every official item take the whole way from canvas text to verdict.

Every right answer scores, plain, in a code fence, in chat prose and with an end token behind; a wrong one, another
item's gold answer, does not. `FAULTY` lists the items where the data set itself is at fault.
"""

import ast
from collections.abc import Callable
from functools import cache

import pytest

from evaluation import extract
from evaluation.benchmarks import Request, load_task, requests
from evaluation.scorers import SCORERS, CodeOptions, CodeScorer
from tests.conftest import SHARED

pytestmark = [pytest.mark.shared, pytest.mark.filterwarnings("ignore:invalid escape")]

TEXT, CODE = ["gsm8k", "gsm8k_cot", "bbh_cot"], ["mbpp", "humaneval", "humaneval_instruct"]
FAULTY: dict[str, str] = {}  # id: what is wrong with the item. Under these scorers, nothing is with any
ALLOWED = CodeOptions(allow_code_execution=True)
EVERY = pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.slow)])  # a sample, and all of it

TEXT_FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda gold: gold,
    "fenced": lambda gold: f"```\n{gold}\n```",
    "prose": lambda gold: f"Sure! Let me work through this step by step.\n\n{gold}\n\nI hope this helps!",
    "end token": lambda gold: f"{gold}<|eot_id|><|endoftext|>",
    "next question": lambda gold: f"{gold}\n\nQuestion: What of 9?\nQ: And of 9?\nProblem:\nWhat of 9?\n#### 9",
    "windows": lambda gold: gold.replace("\n", "\r\n"),
}
CODE_FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda code: code,
    "fenced": lambda code: f"```python\n{code}\n```",
    "fenced without a language": lambda code: f"```\n{code}\n```",
    "prose": lambda code: (
        f"Sure! Here is a solution:\n\n```python\n{code}\n```\n\nIt works, as this shows:\n\n```\n1\n```"
    ),
    "prose without a fence": lambda code: f"Sure, here it is.\n\n{code}\n\nThis function does what was asked.",
    "fence never closed": lambda code: f"Here it is:\n```python\n{code}\n",
    "end token": lambda code: f"{code}<|im_end|><|endoftext|>",
    "windows": lambda code: code.replace("\r\n", "\n").replace("\n", "\r\n"),
}


@cache
def asked(name: str) -> list[Request]:
    return requests(load_task(name, str(SHARED / "data")))


@cache
def wrong_answers(name: str) -> list[str]:
    """For each item, the gold text of the next item whose gold answer is another."""
    items = asked(name)
    golds = [answer(item) for item in items] * 2
    nexts = [
        next(other for other in range(at + 1, len(golds)) if golds[other] != golds[at]) for at in range(len(items))
    ]
    return [items[other % len(items)].target for other in nexts]


def answer(item: Request) -> str:
    doc = item.doc
    if "question" in doc:
        return str(extract.marked_number(doc["answer"]))
    return str(doc.get("target") or doc.get("answer") or doc.get("code") or doc.get("canonical_solution"))


@pytest.mark.parametrize("name", TEXT)
def test_gold_text(name: str) -> None:
    scorer = SCORERS[name]
    missed = [item.id for item in asked(name) if not scorer(item.doc, item.target)[scorer.shown].correct]
    assert missed == [id for id in FAULTY if id.startswith(f"{name}/")]


@EVERY
@pytest.mark.parametrize("name", TEXT)
def test_gold_text_in_every_form(name: str, every: int) -> None:
    scorer = SCORERS[name]
    for item in asked(name)[::every]:
        for form, shape in TEXT_FORMS.items():
            assert scorer(item.doc, shape(item.target))[scorer.shown].correct, (item.id, form)


@pytest.mark.parametrize("name", TEXT)
def test_wrong_text(name: str) -> None:
    scorer = SCORERS[name]
    scores = [scorer(item.doc, text) for item, text in zip(asked(name), wrong_answers(name), strict=True)]
    for verdict in scorer.names:
        assert sum(score[verdict].correct for score in scores) <= 0.03 * len(scores), verdict


def test_gold_math_is_found_in_every_form() -> None:
    """The extracted answer is the same in every form, so that one judgement of it counts for all."""
    until = SCORERS["math500"].until
    for item in asked("math500"):
        plain = extract.math_answer(item.target)
        for form, shape in TEXT_FORMS.items():
            assert extract.math_answer(extract.cut(shape(item.target), until)) == plain, (item.id, form)


@EVERY
def test_gold_math(every: int) -> None:
    scorer, items, wrong = SCORERS["math500"], asked("math500")[::every], wrong_answers("math500")[::every]
    for item in items:
        score = scorer(item.doc, item.target)
        assert all(score[verdict].correct for verdict in scorer.names), item.id
    scores = [scorer(item.doc, text) for item, text in zip(items, wrong, strict=True)]
    assert sum(score["math_verify"].correct for score in scores) <= 0.03 * len(items)


def chat_code(name: str, item: Request) -> str:
    """The whole program of an item, as a chat model would write it."""
    return str(item.doc["code"]) if name == "mbpp" else item.doc["prompt"] + item.doc["canonical_solution"]


def definitions(source: str) -> set[str]:
    """The statements of a program; an import that stands there twice counts once."""
    return {ast.dump(node) for node in ast.parse(source).body}


@EVERY
@pytest.mark.parametrize("name", CODE)
def test_gold_code_is_found_in_every_form(name: str, every: int) -> None:
    """Every form comes to the program of the plain one, so that one run of it counts for all."""
    scorer = SCORERS[name]
    assert isinstance(scorer, CodeScorer)
    for item in asked(name)[::every]:
        plain = definitions(scorer.job(item.doc, item.target).source)
        for form, shape in CODE_FORMS.items():
            assert definitions(scorer.job(item.doc, shape(chat_code(name, item))).source) == plain, (item.id, form)


@pytest.mark.parametrize("every", [100, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CODE)
def test_gold_code(name: str, every: int) -> None:
    items, wrong = asked(name)[::every], wrong_answers(name)[::every]
    docs, texts = [item.doc for item in items] * 2, [item.target for item in items] + wrong
    verdicts = [score["pass@1"] for score in SCORERS[name].score_all(docs, texts, ALLOWED).scores]
    assert not [(item.id, verdict.note) for item, verdict in zip(items, verdicts, strict=False) if not verdict.correct]
    assert sum(verdict.correct for verdict in verdicts[len(items) :]) <= 0.03 * len(items)
