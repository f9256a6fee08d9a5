"""Seeded generators in the schema and prompt form of the official benchmarks, sized for the two small checkpoints.

`items(name, split, count, seed)` gives the items; `prompt` and `answer` give the text in the form that the official
tasks have in lm-eval, which is what the checkpoints are trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evaluation.benchmarks.mini import bbh_cot, gsm8k, gsm8k_cot, humaneval, math500, mbpp

GENERATORS: dict[str, Callable[[str, int, int], list[dict]]] = {
    "mini_gsm8k": gsm8k.items,
    "mini_gsm8k_cot": gsm8k_cot.items,
    "mini_math500": math500.items,
    "mini_mbpp": mbpp.items,
    "mini_humaneval": humaneval.items,
    "mini_bbh_cot": bbh_cot.items,
}
SHOTS = {
    "mini_gsm8k": 4,
    "mini_gsm8k_cot": 8,
    "mini_math500": 4,
    "mini_mbpp": 3,
    "mini_humaneval": 0,
    "mini_bbh_cot": 3,
}
CANVAS = {  # every answer fits
    "mini_gsm8k": 64,
    "mini_gsm8k_cot": 64,
    "mini_math500": 64,
    "mini_mbpp": 64,
    "mini_humaneval": 64,
    "mini_bbh_cot": 64,
}


def items(name: str, split: str, count: int, seed: int = 0) -> list[dict]:
    """`count` different items of one benchmark's "train", "fewshot" or "test" split."""
    if name not in GENERATORS:
        raise ValueError(f"unknown mini benchmark {name!r}: one of {', '.join(GENERATORS)}")
    return GENERATORS[name](split, count, seed)


def _mbpp_question(doc: Mapping) -> str:
    tests = "\n".join(doc["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {doc['text']} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


# name -> (question, what stands between it and its answer, answer), each as in the official benchmark's lm-eval task;
# the exercises are to train on
FORMS: dict[str, tuple[Callable[[Mapping], str], str, Callable[[Mapping], str]]] = {
    "mini_gsm8k": (lambda doc: f"Question: {doc['question']}\nAnswer:", " ", lambda doc: doc["answer"]),
    "mini_gsm8k_cot": (lambda doc: f"Q: {doc['question']}\nA:", " ", lambda doc: doc["answer"]),
    "mini_math500": (lambda doc: f"Problem:\n{doc['problem']}\n\nSolution:", " ", lambda doc: doc["solution"]),
    "mini_mbpp": (_mbpp_question, "", lambda doc: f"{doc['code']}\n[DONE]"),
    "mini_humaneval": (lambda doc: doc["prompt"], "", lambda doc: doc["canonical_solution"].rstrip("\n")),
    "mini_bbh_cot": (lambda doc: f"Q: {doc['input']}\nA: Let's think step by step.\n", "", lambda doc: doc["cot"]),
    "arithmetic": (lambda doc: f"{doc['given']}=", "", lambda doc: doc["result"]),
    "calculation": (lambda doc: f"{doc['given']}=", "", lambda doc: doc["result"]),
    "chains": (lambda doc: f"{doc['given']}\nChain:", " ", lambda doc: doc["result"]),
    "cloze": (lambda doc: f"{doc['given']}=", "", lambda doc: doc["result"]),
    "copying": (lambda doc: f"Copy: {doc['given']}\n", "", lambda doc: doc["result"]),
    "formulas": (lambda doc: f"{doc['given']}\nFormulas:", " ", lambda doc: doc["result"]),
    "lines": (lambda doc: f"{doc['given']}:", " ", lambda doc: doc["result"]),
    "step": (lambda doc: f"{doc['given']}\nNext:", " ", lambda doc: doc["result"]),
    "worked": (lambda doc: f"{doc['given']}\nAnswer:", " ", lambda doc: doc["result"]),
}


def question(name: str, doc: Mapping) -> str:
    """The open question as it ends the prompt."""
    return FORMS[name][0](doc)


def answer(name: str, doc: Mapping) -> str:
    """The worked answer that a model is to write into the canvas."""
    return FORMS[name][2](doc)


def prompt(name: str, doc: Mapping, shots: Sequence[Mapping] = ()) -> str:
    """Solved shots and the open question, a blank line between them."""
    ask, gap, reply = FORMS[name]
    return "\n\n".join([*(f"{ask(shot)}{gap}{reply(shot)}" for shot in shots), ask(doc)])
