"""What each benchmark is: its data, its prompt, its shots. Data only; `task.py` turns an entry into an lm-eval task.

Prompt templates and few-shot text come from lm-eval 0.4.13 (`library`, a path below `lm_eval/tasks`). Where that file
cannot be read as data, the template stands here and the samples come from lm-eval's module (`samples`).
The mini benchmarks are the official ones with another source of items: same templates, same scorers.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluation import code_answer

Doc = Mapping[str, Any]


@dataclass(frozen=True)
class Definition:
    """One benchmark. Exactly one of (`hub`, `files`) and `generator` tells where its items come from.

    `splits` maps our splits to the hub's; `files` maps them to a path in a data folder. `{subtask}` in a path, a hub
    configuration or `library` stands for the subtask's name. `rows` narrows a file that holds more than one split.
    `fields` are those that prompt and scorer need. `count` is how many items a generator makes unless told otherwise.
    `target` is the text a perfect model would write for an item, `shot` turns an item into a solved example as the
    template expects it. `id_field` is the field that holds the published id.
    """

    fields: tuple[str, ...]
    target: Callable[[Doc], str]
    num_fewshot: int
    gen_length: int
    library: str | None = None
    prompt: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[str, str] | None = None
    hub: tuple[str, str | None] | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})
    files: Mapping[str, str] = field(default_factory=dict)
    rows: Callable[[Doc], bool] | None = None
    id_field: str | None = None
    generator: str | None = None
    shot: Callable[[Doc], Doc] = lambda doc: doc
    subtasks: tuple[str, ...] = ()
    count: int = 500


def cot_answer(doc: Doc) -> str:
    """GSM8K's worked answer in the form of the chain-of-thought prompt: no calculator marks, "The answer is n."."""
    steps, _, final = str(doc["answer"]).rpartition("####")
    return f"{' '.join(re.sub(r'<<.*?>>', '', steps).split())} The answer is {final.strip()}."


BBH_SUBTASKS = (
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "disambiguation_qa",
    "dyck_languages",
    "formal_fallacies",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "sports_understanding",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
)

GSM8K = Definition(
    fields=("question", "answer"),
    target=lambda doc: str(doc["answer"]),
    num_fewshot=4,
    gen_length=256,
    library="gsm8k/gsm8k.yaml",
    hub=("openai/gsm8k", "main"),
    splits={"test": "test", "fewshot": "train"},
    files={"test": "gsm8k/test.jsonl", "fewshot": "gsm8k/train.jsonl"},
)
GSM8K_COT = replace(
    GSM8K,
    target=cot_answer,
    num_fewshot=8,
    library="gsm8k/gsm8k-cot.yaml",
    splits={"test": "test"},
    files={"test": "gsm8k/test.jsonl"},
)
MATH500 = Definition(
    fields=("problem", "solution", "answer"),
    target=lambda doc: str(doc["solution"]),
    num_fewshot=4,
    gen_length=256,
    prompt={"doc_to_text": "Problem:\n{{problem}}\n\nSolution:", "doc_to_target": "{{solution}}"},
    samples=("minerva_math/utils.py", "list_fewshot_samples"),
    hub=("HuggingFaceH4/MATH-500", None),
    files={"test": "math500/test.jsonl"},
    id_field="unique_id",
)
MBPP = Definition(
    fields=("task_id", "text", "code", "test_list"),
    target=code_answer.mbpp_gold,
    num_fewshot=3,
    gen_length=512,
    library="mbpp/mbpp.yaml",
    samples=("mbpp/utils.py", "list_fewshot_samples"),
    hub=("google-research-datasets/mbpp", "full"),
    files={"test": "mbpp/mbpp.jsonl"},
    rows=lambda doc: 11 <= doc["task_id"] <= 510,  # the published test split; the file holds all 974
    id_field="task_id",
)
HUMANEVAL = Definition(
    fields=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
    target=code_answer.humaneval_gold,
    num_fewshot=0,
    gen_length=512,
    library="humaneval/humaneval.yaml",
    hub=("openai/openai_humaneval", None),
    files={"test": "humaneval/HumanEval.jsonl.gz"},
    id_field="task_id",
)
HUMANEVAL_INSTRUCT = replace(
    HUMANEVAL,
    target=code_answer.humaneval_instruct_gold,
    library="humaneval/humaneval_instruct.yaml",
)
BBH_COT = Definition(
    fields=("input", "target"),
    target=lambda doc: f"So the answer is {doc['target']}.",
    num_fewshot=3,
    gen_length=256,
    library="bbh/cot_fewshot/{subtask}.yaml",
    hub=("SaylorTwift/bbh", "{subtask}"),
    files={"test": "bbh/{subtask}.json"},
    subtasks=BBH_SUBTASKS,
)


def mini(official: Definition, generator: str, gen_length: int = 64, **changes: Any) -> Definition:
    """`official` with its items made by `evaluation.benchmarks.mini.<generator>`, shots from the split "fewshot"."""
    splits = {"test": "test", "train": "train"} | ({"fewshot": "fewshot"} if official.num_fewshot else {})
    return replace(
        official,
        generator=generator,
        hub=None,
        files={},
        rows=None,
        samples=None,
        splits=splits,
        gen_length=gen_length,
        **changes,
    )


DEFINITIONS: dict[str, Definition] = {
    "gsm8k": GSM8K,
    "gsm8k_cot": GSM8K_COT,
    "math500": MATH500,
    "mbpp": MBPP,
    "humaneval": HUMANEVAL,
    "humaneval_instruct": HUMANEVAL_INSTRUCT,
    "bbh_cot": BBH_COT,
    "mini_gsm8k": mini(GSM8K, "gsm8k"),
    "mini_gsm8k_cot": mini(
        GSM8K_COT,
        "gsm8k_cot",
        target=lambda doc: str(doc["answer"]),
        shot=lambda doc: {"question": doc["question"], "target": doc["answer"]},
    ),
    "mini_math500": mini(MATH500, "math500", count=400, id_field=None),
    "mini_mbpp": mini(MBPP, "mbpp", count=300, shot=lambda doc: {**doc, "is_fewshot": True}),
    "mini_humaneval": mini(HUMANEVAL, "humaneval", count=300, id_field=None),
    "mini_bbh_cot": mini(
        BBH_COT,
        "bbh_cot",
        gen_length=64,
        library=None,
        prompt={
            "doc_to_text": "Q: {{input}}\nA: Let's think step by step.\n",
            "doc_to_target": "{{target}}",
            "target_delimiter": "",
        },
        target=lambda doc: str(doc["cot"]),
        shot=lambda doc: {"input": doc["input"], "target": doc["cot"]},
        subtasks=("boolean_expressions", "object_counting", "navigate", "word_sorting"),
    ),
}
