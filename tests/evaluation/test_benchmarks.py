"""The benchmarks as tasks: their items, shots and records (CASES R4, R6)."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import pytest
import yaml
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate

from evaluation.benchmarks import (
    DEFINITIONS,
    data_sha256,
    fewshot_sha256,
    load_task,
    mini,
    requests,
    task_hash,
    task_record,
)
from evaluation.benchmarks.library import literal_samples
from evaluation.benchmarks.task import BenchmarkTask, tasks_of
from evaluation.scorers import SCORERS

CONF = Path(__file__).resolve().parents[2] / "conf" / "benchmark"
OFFICIAL = [name for name in DEFINITIONS if not name.startswith("mini_")]
MINI = [name for name in DEFINITIONS if name.startswith("mini_")]
ITEMS = {
    "gsm8k": 1319,
    "gsm8k_cot": 1319,
    "math500": 500,
    "mbpp": 500,
    "humaneval": 164,
    "humaneval_instruct": 164,
    "bbh_cot": 6511,
}


# -- shots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shots", [0, 1, 5])
def test_num_fewshot_is_exact(shots: int) -> None:
    """R6: so many solved questions, one open question."""
    prompt = requests(load_task("mini_gsm8k", num_fewshot=shots, count=5), limit=1)[0].prompt_text
    assert prompt.count("Question: ") == shots + 1
    assert prompt.count("#### ") == shots
    assert prompt.endswith("\nAnswer:")


def test_shots_are_the_same_for_every_item_and_every_load() -> None:
    """R6."""
    task, again = load_task("mini_gsm8k", count=5), load_task("mini_gsm8k", count=5)
    heads = {request.prompt_text.rpartition("Question: ")[0] for request in requests(task)}
    assert heads == {tasks_of(task)[0].fewshot_text}
    assert fewshot_sha256(task) == fewshot_sha256(again) == task_record(again)["fewshot_sha256"]
    assert fewshot_sha256(task) != fewshot_sha256(load_task("mini_gsm8k", num_fewshot=3, count=5))
    assert data_sha256(task) != data_sha256(load_task("mini_gsm8k", count=4))


@pytest.mark.parametrize("name", MINI)
def test_mini_prompts_have_the_form_the_checkpoints_are_trained_on(name: str) -> None:
    """The official templates and the generator's own rendering give the same text."""
    task = load_task(name, count=8)
    for request in requests(task):
        (member,) = [member for member in tasks_of(task) if member.subtask == request.subtask]
        shots = mini.items(name, "fewshot", 100 if request.subtask else 8)
        same = [shot for shot in shots if request.subtask in (None, shot.get("subtask"))]
        assert request.prompt_text == mini.prompt(name, request.doc, same[: member.config.num_fewshot])
        assert request.target.rstrip("\n") == mini.answer(name, request.doc)


@pytest.mark.parametrize("name", MINI)
def test_mini_splits_share_no_item(name: str) -> None:
    def questions(split: str) -> set[str]:
        return {mini.question(name, item) for item in mini.items(name, split, 50)}

    train, fewshot, test = questions("train"), questions("fewshot"), questions("test")
    assert not (train & test or train & fewshot or fewshot & test)


@pytest.mark.shared
def test_bbh_shots_are_the_published_chains(shared: Path) -> None:
    """Byte for byte, but for one subtask whose answers lm-eval starts on a new line."""
    for member in tasks_of(load_task("bbh_cot", str(shared / "data"))):
        published = (shared / "data/bbh/cot-prompts" / f"{member.subtask}.txt").read_text(encoding="utf-8")
        published = published.split("-----\n", 1)[1] + "\n\n"
        if member.subtask == "sports_understanding":
            published = published.replace("step by step. ", "step by step.\n")
        assert member.fewshot_text == published, member.subtask


# -- the task is ours, and lm-eval's -----------------------------------------------------------------------------------


def test_our_task_is_used_not_the_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: lm-eval's index, which has a task of the same name, is never asked; the record says which task it was."""
    monkeypatch.setitem(DEFINITIONS, "gsm8k", replace(DEFINITIONS["mini_gsm8k"], num_fewshot=4))
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", None)
    task = load_task("gsm8k", count=5)
    assert isinstance(task, BenchmarkTask)
    assert isinstance(task, ConfigurableTask)
    assert task.task_name == "gsm8k"
    assert task_record(task)["task_sha256"] == task_hash(task)
    changed = replace(
        DEFINITIONS["gsm8k"], library=None, prompt={"doc_to_text": "{{question}}", "doc_to_target": "{{answer}}"}
    )
    monkeypatch.setitem(DEFINITIONS, "gsm8k", changed)
    assert task_hash(load_task("gsm8k", count=5)) != task_hash(task)


class Oracle(LM):
    """Answers every prompt with its gold text, cut as our LM cuts it."""

    tokenizer_name = "none"

    def __init__(self, answers: Mapping[str, str]) -> None:
        super().__init__()
        self.answers = answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return [self.answers[request.args[0]] for request in requests]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        assert [turn["role"] for turn in chat_history] in (["user"], ["user", "assistant"])
        return chat(chat_history[0]["content"]) + "".join(turn["content"] for turn in chat_history[1:])


def chat(content: str) -> str:
    return f"<user>{content}<model>"


@pytest.mark.parametrize("templated", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize("name", ["mini_gsm8k", "mini_bbh_cot", "mini_math500"])
def test_lm_eval_asks_and_scores_alike(name: str, templated: bool) -> None:
    """lm-eval's own evaluator renders the prompts of `requests` and reaches the verdicts of the scorers."""
    task = load_task(name, count=8)
    asked = requests(task, chat_template=chat if templated else None)
    loaded = lm_eval.tasks.TaskManager(include_defaults=False).load(task)
    oracle = Oracle({request.prompt_text: request.target for request in asked})
    results = evaluate(oracle, loaded, apply_chat_template=templated, bootstrap_iters=0)["results"]
    assert results[name][f"{SCORERS[name].shown},none"] == 1.0
    assert results[name]["sample_len"] == 8


def test_other_shots_than_the_task_was_built_for_are_refused() -> None:
    task = tasks_of(load_task("mini_gsm8k", count=5))[0]
    with pytest.raises(ValueError, match="built for 4 shots in one user turn, asked for 5"):
        task.fewshot_context(task.eval_docs[0], 5)


def test_shots_and_question_are_one_user_turn() -> None:
    for request in requests(load_task("mini_bbh_cot", count=8), chat_template=chat):
        assert request.prompt_text.count("<user>") == request.prompt_text.count("<model>") == 1
        assert request.prompt_text.endswith("<model>")


def test_minerva_s_shots_are_read_without_running_the_module() -> None:
    samples = literal_samples("minerva_math/utils.py", "list_fewshot_samples")
    assert len(samples) == 4
    assert all("boxed" in sample["solution"] for sample in samples)
    with pytest.raises(ValueError, match="no function missing"):
        literal_samples("minerva_math/utils.py", "missing")


# -- items -----------------------------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize("name", OFFICIAL)
def test_official_items(name: str, shared: Path) -> None:
    task = load_task(name, str(shared / "data"))
    asked = requests(task)
    assert len(asked) == task_record(task)["items"] == ITEMS[name]
    assert len({request.id for request in asked}) == ITEMS[name]
    assert [request.index for request in asked] == list(range(ITEMS[name]))
    assert all(json.dumps(request.doc) for request in asked)


@pytest.mark.shared
def test_published_ids(shared: Path) -> None:
    def ids(name: str) -> list[str]:
        return [request.id for request in requests(load_task(name, str(shared / "data")))]

    assert ids("mbpp") == [f"mbpp/test/{n}" for n in range(11, 511)]
    assert ids("humaneval")[-1] == "humaneval/test/HumanEval/163"
    assert ids("math500")[0] == "math500/test/test/precalculus/807.json"
    assert ids("gsm8k")[17] == "gsm8k/test/17"


def test_a_group_is_dealt_in_turn() -> None:
    """Any prefix holds the subtasks evenly, and a longer run begins with the shorter one."""
    asked = requests(load_task("mini_bbh_cot", count=20))
    assert Counter(request.subtask for request in asked[:8]) == Counter(
        dict.fromkeys(DEFINITIONS["mini_bbh_cot"].subtasks, 2)
    )
    assert asked[:6] == requests(load_task("mini_bbh_cot", count=20), limit=6)
    chosen = requests(load_task("mini_bbh_cot", count=20, subtasks=["navigate"]))
    assert {request.subtask for request in chosen} == {"navigate"}
    assert chosen[0].id == "mini_bbh_cot/navigate/0"


def test_the_training_split_of_a_mini_benchmark() -> None:
    asked = requests(load_task("mini_gsm8k", split="train", count=5))
    assert asked[0].id == "mini_gsm8k/train/0"
    assert not {request.prompt_text for request in asked} & {r.prompt_text for r in requests(load_task("mini_gsm8k"))}


class Hub:
    """`datasets.load_dataset` without a network."""

    def __init__(self, rows: list[dict[str, Any]] | Exception) -> None:
        self.rows, self.asked = rows, []

    def __call__(self, path: str, name: str | None, split: str) -> datasets.Dataset:
        self.asked.append((path, name, split))
        if isinstance(self.rows, Exception):
            raise self.rows
        return datasets.Dataset.from_list(self.rows)


@pytest.mark.shared
def test_hub_and_folder_give_the_same_task(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    rows = [json.loads(line) for line in (shared / "data/mbpp/mbpp.jsonl").read_text(encoding="utf-8").splitlines()]
    hub = Hub(rows)
    monkeypatch.setattr(datasets, "load_dataset", hub)
    task, local = load_task("mbpp"), load_task("mbpp", str(shared / "data"))
    assert hub.asked == [("google-research-datasets/mbpp", "full", "test")]
    assert task_record(task) == task_record(local)


HUB_CALLS = [
    ("gsm8k", [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]),
    ("math500", [("HuggingFaceH4/MATH-500", None, "test")]),
    ("humaneval", [("openai/openai_humaneval", None, "test")]),
]


@pytest.mark.parametrize("name, calls", HUB_CALLS)
def test_what_the_hub_is_asked_for(name: str, calls: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"question": "q", "answer": "#### 1", "problem": "p", "solution": "s", "prompt": "p", "test": "t"}
    hub = Hub([{**row, "entry_point": "e", "canonical_solution": "c", "task_id": "t", "unique_id": "u"}] * 4)
    monkeypatch.setattr(datasets, "load_dataset", hub)
    load_task(name)
    assert hub.asked == calls


# -- bad input: one line that names the value and what would do --------------------------------------------------------

BAD = [
    ({"name": "gsm9k"}, "benchmark.name=gsm9k is unknown; one of gsm8k, "),
    ({"name": "mini_gsm8k", "data": "hub"}, "mini_gsm8k: benchmark.data=hub .* use benchmark.data=generated"),
    ({"name": "gsm8k", "data": "generated"}, "gsm8k: benchmark.data=generated .* use benchmark.data=hub or a folder"),
    ({"name": "mini_math500", "num_fewshot": -1}, "mini_math500: benchmark.num_fewshot=-1, but there are"),
    (
        {"name": "mini_humaneval", "num_fewshot": 1, "count": 2},
        "mini_humaneval: benchmark.num_fewshot=1, but there are 0 solved",
    ),
    ({"name": "mini_gsm8k", "split": "fewshot"}, "benchmark.split=fewshot cannot be asked; use test or train"),
    ({"name": "gsm8k", "split": "train"}, "benchmark.split=train cannot be asked; use test"),
    ({"name": "mini_bbh_cot", "subtasks": ["chess"]}, "unknown subtask chess; one of boolean_expressions, "),
    ({"name": "mini_gsm8k", "subtasks": ["chess"]}, "unknown subtask chess; one of none"),
    ({"name": "mini_bbh_cot", "count": 3}, "benchmark.count=3 leaves nothing to ask; 4 or more would do"),
    ({"name": "gsm8k", "data": "nowhere"}, "gsm8k: no file nowhere/gsm8k/train.jsonl; put the official file there, or"),
    ({"name": "bbh_cot", "data": "nowhere"}, "bbh_cot: no file nowhere/bbh/boolean_expressions.json"),
]


@pytest.mark.parametrize("arguments, message", BAD)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        load_task(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), ValueError("no such config"), OSError()])
def test_no_network(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", Hub(error))
    with pytest.raises(FileNotFoundError, match=r"math500: HuggingFaceH4/MATH-500 cannot be read .*<folder>") as raised:
        load_task("math500")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name, file, content",
    [
        ("math500", "math500/test.jsonl", '{"problem": "p"'),
        ("bbh_cot", "bbh/boolean_expressions.json", "[]"),
        ("bbh_cot", "bbh/boolean_expressions.json", "{}"),
        ("math500", "math500/test.jsonl", ""),
        ("math500", "math500/test.jsonl", '{"problem": "p"}'),
    ],
)
def test_damaged_files(name: str, file: str, content: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=name) as error:
        load_task(name, str(tmp_path))
    assert "\n" not in str(error.value)


# -- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINITIONS)
def test_configuration_says_what_the_definition_says(name: str) -> None:
    config = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    definition = DEFINITIONS[name]
    assert config["name"] == name
    assert config["num_fewshot"] == definition.num_fewshot
    assert config["gen_length"] == definition.gen_length
    assert config["data"] == ("generated" if definition.generator else "hub")
    assert config["split"] == "test"
    assert ("subtasks" in config) == bool(definition.subtasks)
    assert config.get("count") == (definition.count if definition.generator else None)


def test_every_benchmark_has_a_configuration_and_a_scorer() -> None:
    assert {path.stem for path in CONF.glob("*.yaml")} == set(DEFINITIONS) == set(SCORERS)
