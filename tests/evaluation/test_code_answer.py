"""Programs from answers of any form (CASE S5). Each is compiled and called here; the sandbox has its own tests."""

import ast
from contextlib import suppress
from typing import Any

import pytest

from evaluation.code_answer import (
    humaneval_answer,
    humaneval_instruct_answer,
    mbpp_answer,
    mbpp_entry_point,
    split_fences,
)
from evaluation.scorers import SCORERS, CodeScorer

PROMPT = 'import math\n\n\ndef twice(n):\n    """Return twice n.\n\n    >>> twice(2)\n    4\n    """\n'
DOC = {"prompt": PROMPT, "entry_point": "twice", "canonical_solution": "    return 2 * n\n", "test": "", "task_id": "t"}
WHOLE = "def twice(n):\n    return 2 * n\n"


def called(source: str, argument: Any = 3) -> Any:
    space: dict[str, Any] = {}
    exec(compile(source, "answer", "exec"), space)
    return space["twice"](argument)


FORMS = {
    "body only": "    return 2 * n\n",
    "body, a line before it": "\n\n    return 2 * n\n",
    "body, indentation lost": "return 2 * n",
    "body, indentation of the first line lost": "m = n\n    return 2 * m",
    "body and prose": "    return 2 * n\n\nThis doubles the number.",
    "body and a closing fence": "    return 2 * n\n```\nThis doubles the number.",
    "body and another function": "    return 2 * n\n\n\ndef twice_more(n):\n    return twice(twice(n))\n",
    "body and an unfinished function": "    return 2 * n\n\n\ndef other(n",
    "body and a script": "    return 2 * n\n\nif __name__ == '__main__':\n    print(twice(",
    "fenced body": "```python\n    return 2 * n\n```",
    "whole function": WHOLE,
    "whole function with the prompt's docstring": f"{PROMPT}    return 2 * n\n",
    "whole function behind a blank": f" {WHOLE}",
    "fenced": f"```python\n{WHOLE}```",
    "fenced, py": f"```py\n{WHOLE}```",
    "fenced, version": f"```python3.11\n{WHOLE}```",
    "fenced, four ticks": f"````python\n{WHOLE}````",
    "fenced, capital letter": f"```Python\n{WHOLE}```",
    "fenced without a language": f"```\n{WHOLE}```",
    "fenced on one line": "```python def twice(n): return 2 * n```",
    "fenced in a list": "1. Do this:\n   ```python\n   def twice(n):\n       return 2 * n\n   ```",
    "prose, fence, prose": f"Sure! Here is the code:\n\n```python\n{WHOLE}```\n\nIt doubles the number.",
    "prose without a fence": f"Sure! Here is the code:\n\n{WHOLE}\nIt doubles the number, as asked.",
    "words that are Python": f"Answer\n\n{WHOLE}\nExplanation\nNote: linear\nn * 2",
    "a fence never closed": f"Here:\n```python\n{WHOLE}",
    "a second fence that shows its use": f"```python\n{WHOLE}```\nUse it so:\n```python\nprint(twice(undefined))\n```",
    "a first fence that shows its use": f"You want\n```python\nassert twice(2) == 4\n```\nso\n```python\n{WHOLE}```",
    "the prompt, then the function": f"```python\n{PROMPT}```\nbecomes\n```python\n{WHOLE}```",
    "a stub, then the function": f"```python\ndef twice(n):\n    pass\n```\nbecomes\n```python\n{WHOLE}```",
    "a fence opened twice": f"```python\n{PROMPT}```python\n{WHOLE}```",
    "import before it": f"import os\nimport math\n\n{WHOLE}",
    "from before it": f"from os import path\n\n{WHOLE}",
    "future import before it": f"from __future__ import annotations\n\n{WHOLE}",
    "helper before it": "FACTOR = 2\n\n\ndef by(n):\n    return FACTOR * n\n\n\ndef twice(n):\n    return by(n)\n",
    "helper after it": "def twice(n):\n    return by(n)\n\n\ndef by(n):\n    return 2 * n\n",
    "decorator before it": f"import functools\n\n@functools.cache\n{WHOLE}",
    "lambda": "twice = lambda n: 2 * n",
    "the prompt's import used": "def twice(n):\n    return math.floor(2 * n)\n",
    "nested function": "    def by(m):\n        return 2 * m\n\n    return by(n)\n",
    "end token": f"{WHOLE}<|eot_id|>and so on",
    "end token behind a body": "    return 2 * n<|endoftext|>and so on",
    "end token in a fence": f"```python\n{WHOLE}```<|im_end|>",
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_answer_of_any_form(text: str, ends: str) -> None:
    scorer = SCORERS["humaneval"]
    assert isinstance(scorer, CodeScorer)
    source = scorer.job(DOC, text.replace("\n", ends)).source
    assert called(source) == 6
    assert source.count("def twice(n):") <= 1, "the signature is doubled"
    assert "import math" in source, "an import of the prompt is lost"


def test_the_first_fence_that_defines_the_entry_point_counts() -> None:
    first, second = "def twice(n):\n    return 2 * n", "def twice(n):\n    return n + n + 1"
    for one, two in ((first, second), (second, first)):
        text = f"```python\n{one}\n```\nor\n```python\n{two}\n```"
        assert called(humaneval_answer(DOC, text)) == called(f"import math\n{one}")


INSTRUCT = {
    "body, fence closed": "    return 2 * n\n```",
    "body, fence never closed": "    return 2 * n\n",
    "body, prose behind": "    return 2 * n\n```\nThis doubles it.",
    "body, indentation lost": "return 2 * n\n```",
    "body, a variant behind": "    return 2 * n\n```\nor\n```python\ndef twice(n):\n    return 0\n```",
    "started over": f"```python\n{PROMPT}    return 2 * n\n```",
    "started over without a fence": f"{WHOLE}```",
}


@pytest.mark.parametrize("text", INSTRUCT.values(), ids=INSTRUCT.keys())
def test_answer_in_an_open_fence(text: str) -> None:
    assert called(humaneval_instruct_answer(DOC, text)) == 6


WRONG = [
    "",
    "pass",
    "    pass",
    "I cannot do that.",
    "Sure",
    "```python\n```",
    WHOLE.replace("2 *", "2 * ("),
    "\x00",
    "(" * 500,
]


@pytest.mark.parametrize("text", WRONG)
def test_no_answer_is_no_crash_and_no_pass(text: str) -> None:
    for assemble in (humaneval_answer, humaneval_instruct_answer):
        source = assemble(DOC, text)
        with suppress(SyntaxError, ValueError, NameError, MemoryError, RecursionError):
            assert called(source) != 6


MBPP = {"test_list": ["assert twice(2) == 4"], "test_setup_code": ""}


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        f"[BEGIN]\n{WHOLE}\n",
        f"\n{WHOLE}",
        f"Here it is:\n\n```python\n{WHOLE}```\nDone.",
        f"Here it is:\n\n{WHOLE}\nDone\n",
        f"R = 3\n{WHOLE}",
    ],
)
def test_mbpp_answer(text: str) -> None:
    assert called(mbpp_answer(MBPP, text)) == 6


ENTRY_POINTS = [
    (["assert twice(2) == 4"], "twice"),
    (["assert set(similar((1,), (2,))) == set()"], "similar"),
    (["assert math.isclose(area(2), 4)"], "area"),
    (["assert (max_height(root)) == 3"], "max_height"),
    (["assert sum(10,15) == 6"], "sum"),  # MBPP/126 names its function after a builtin
]


@pytest.mark.parametrize("tests, name", ENTRY_POINTS)
def test_mbpp_entry_point(tests: list[str], name: str) -> None:
    assert mbpp_entry_point(tests) == name


def test_mbpp_entry_point_of_no_call() -> None:
    with pytest.raises(ValueError, match="no assert calls a function"):
        mbpp_entry_point(["assert True"])


def test_split_fences() -> None:
    assert split_fences("a\n```python\nb\n```\nc\n```\nd\n```") == ("a\n", ["b", "d"])
    assert split_fences("a") == ("a", [])
    assert split_fences("```\n\n```") == ("", [])


def test_prompt_with_an_import_in_the_body() -> None:
    """HumanEval/115 imports below its signature, which is not yet a body."""
    doc = {**DOC, "prompt": 'def twice(n):\n    import math\n    """Return twice n."""\n'}
    for text in ("    return math.floor(2 * n)", "return math.floor(2 * n)", "```\n    return math.floor(2 * n)\n```"):
        assert called(humaneval_answer(doc, text)) == 6
    ast.parse(humaneval_answer(doc, ""))
