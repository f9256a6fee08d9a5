"""The benchmarks as tasks: their items, shots and records (CASES R4, R6)."""

import pytest
from lm_eval.api.task import ConfigurableTask

from evaluation.benchmarks import data_sha256, fewshot_sha256, load_task, requests, task_record


def test_one_task_is_an_lm_eval_task() -> None:
    task = load_task("mini_gsm8k", count=5)
    assert isinstance(task, ConfigurableTask)
    assert len(task.eval_docs) == 5


@pytest.mark.parametrize("shots", [0, 1, 5])
def test_num_fewshot_is_exact(shots: int) -> None:
    """R6: so many solved questions, one open question."""
    prompt = requests(load_task("mini_gsm8k", num_fewshot=shots, count=5), limit=1)[0].prompt_text
    assert prompt.count("Question: ") == shots + 1
    assert prompt.count("#### ") == shots
    assert prompt.endswith("\nAnswer:")


def test_shots_are_the_same_for_every_item_and_every_load() -> None:
    task, again = load_task("mini_gsm8k", count=5), load_task("mini_gsm8k", count=5)
    heads = {request.prompt_text.rpartition("Question: ")[0] for request in requests(task)}
    assert heads == {task.fewshot_text}
    assert fewshot_sha256(task) == fewshot_sha256(again) == task_record(again)["fewshot_sha256"]
    assert fewshot_sha256(task) != fewshot_sha256(load_task("mini_gsm8k", num_fewshot=3, count=5))
    assert data_sha256(task) != data_sha256(load_task("mini_gsm8k", count=4))
