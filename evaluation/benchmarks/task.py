"""The benchmarks as lm-eval tasks, and the prompts a run asks a model.

Ours are built from `definitions.py` and never looked up by name in lm-eval's index, so a task of the library with the
same name cannot take their place; `task_hash` in a run's record says which definition was used.

One rule for chat models: description, shots and question go as *one* user turn. Shots are the first n of the few-shot
split (or of the published samples), the same for every item, method and model. A task with a `gen_prefix`
(humaneval_instruct) starts the model's turn with it.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import lm_eval.utils
from datasets import Dataset, DatasetDict
from jinja2 import Template
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask
from lm_eval.config.group import AggMetricConfig

from evaluation.benchmarks.definitions import DEFINITIONS, Definition
from evaluation.benchmarks.library import literal_samples, prompt_config
from evaluation.benchmarks.sources import default_source, read_items, same_keys
from evaluation.scorers import SCORERS, CodeOptions, CodeScorer, Doc

FEWSHOT = "fewshot"


@dataclass(frozen=True)
class Request:
    """One question to a model. `index` is its place in the run's order, `until` the strings the scorer cuts at."""

    id: str
    index: int
    subtask: str | None
    doc: dict[str, Any]
    prompt_text: str
    target: str
    until: tuple[str, ...]


class BenchmarkTask(ConfigurableTask):
    """An lm-eval task over rows that are already here, with one fixed block of shots."""

    def __init__(
        self, name: str, subtask: str | None, definition: Definition, rows: list[dict[str, Any]], config: dict[str, Any]
    ) -> None:
        self.name, self.subtask, self.definition, self._rows = name, subtask, definition, rows
        super().__init__(config=config)

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.dataset = DatasetDict({self.config.test_split: Dataset.from_list(same_keys(self._rows))})

    @cached_property
    def docs(self) -> list[dict[str, Any]]:
        """The items asked, in order."""
        return list(self.eval_docs)

    @cached_property
    def fewshot_text(self) -> str:
        """Description and solved shots, up to the open question; rendered by lm-eval."""
        first = self.docs[0]
        context = super().fewshot_context(first, self.config.num_fewshot)
        return str(context).removesuffix(self.doc_to_text(first))

    def doc_to_text(self, doc: Doc, doc_to_text: str | None = None) -> str:
        """lm-eval's hook, with the template compiled once and not once an item."""
        return compiled(doc_to_text or self.config.doc_to_text).render(**doc)

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        fewshot_as_multiturn: bool = False,
        chat_template: Callable[..., str] | None = None,
        gen_prefix: str | None = None,
    ) -> str:
        """lm-eval's hook: shots and question as one user turn, then `gen_prefix`.

        Raises ValueError if another number of shots, or one turn a shot, is asked for: the record would be wrong.
        """
        if num_fewshot != self.config.num_fewshot or fewshot_as_multiturn:
            raise ValueError(
                f"{self.task_name}: built for {self.config.num_fewshot} shots in one user turn, asked for {num_fewshot}"
                f"{' as turns' * fewshot_as_multiturn}; set benchmark.num_fewshot instead"
            )
        content = self.fewshot_text + self.doc_to_text(doc)
        if not (apply_chat_template and chat_template):
            return (system_instruction or "") + content + (gen_prefix or "")
        messages = [{"role": "system", "content": system_instruction}] if system_instruction else []
        messages.append({"role": "user", "content": content})
        if gen_prefix:
            messages.append({"role": "assistant", "content": gen_prefix})
        return chat_template(messages, add_generation_prompt=not gen_prefix)


@cache
def compiled(template: str) -> Template:
    return lm_eval.utils.env.from_string(template)


def load_task(
    name: str,
    data: str | None = None,
    num_fewshot: int | None = None,
    *,
    split: str = "test",
    subtasks: Sequence[str] | None = None,
    count: int | None = None,
    seed: int = 0,
) -> BenchmarkTask | Group:
    """The benchmark `name` as an lm-eval task, or as a group of tasks where it has subtasks.

    `data` is "hub", a folder (DESIGN.md §7), or "generated" for a mini benchmark (`count` items from `seed`); None
    means the benchmark's own. `num_fewshot` None means the published number. `split` is "test", or "train" for a mini
    benchmark, where settings can be tuned without looking at the test items. Raises ValueError or FileNotFoundError
    with one line that names the value and what would do.
    """
    if name not in DEFINITIONS:
        raise ValueError(f"benchmark.name={name} is unknown; one of {', '.join(DEFINITIONS)}")
    definition = DEFINITIONS[name]
    shots = definition.num_fewshot if num_fewshot is None else num_fewshot
    data = data or default_source(definition)
    wanted = definition.subtasks if subtasks is None else tuple(subtasks)
    if unknown := [subtask for subtask in wanted if subtask not in definition.subtasks]:
        raise ValueError(f"{name}: unknown subtask {unknown[0]}; one of {', '.join(definition.subtasks) or 'none'}")
    asked = [known for known in definition.splits if known != FEWSHOT]
    if split not in asked:
        raise ValueError(f"{name}: benchmark.split={split} cannot be asked; use {' or '.join(asked)}")
    many = definition.count if count is None else count
    if many < (least := max(1, len(definition.subtasks))):
        raise ValueError(f"{name}: benchmark.count={many} leaves nothing to ask; {least} or more would do")

    def build(subtask: str | None) -> BenchmarkTask:
        def items(which: str, number: int) -> list[dict[str, Any]]:
            return read_items(name, definition, which, data, subtask, number, seed)

        samples = items(FEWSHOT, shots) if FEWSHOT in definition.splits and shots else None
        return _build(name, definition, subtask, split, items(split, many), samples, shots)

    if not definition.subtasks:
        return build(None)
    # lm-eval's own aggregate is the micro mean
    group = Group(name, aggregate_metric_list=[AggMetricConfig(verdict) for verdict in SCORERS[name].names])
    for subtask in wanted:
        group.add(build(subtask))
    return group


def _build(
    name: str,
    definition: Definition,
    subtask: str | None,
    split: str,
    rows: list[dict[str, Any]],
    fewshot_rows: list[dict[str, Any]] | None,
    shots: int,
) -> BenchmarkTask:
    prompt = dict(definition.prompt)
    if definition.library:
        prompt |= prompt_config(definition.library.format(subtask=subtask))
    samples = prompt.pop("samples", [])
    if definition.samples:
        samples = literal_samples(*definition.samples)
    if fewshot_rows is not None:
        samples = [dict(definition.shot(row)) for row in fewshot_rows]
    if not 0 <= shots <= len(samples):
        raise ValueError(f"{name}: benchmark.num_fewshot={shots}, but there are {len(samples)} solved examples")
    scorer = SCORERS[name]

    def judged(doc: Doc, results: Sequence[str]) -> dict[str, float]:
        """lm-eval's hook. It runs `unsafe_code` tasks only where its own caller has confirmed that."""
        if isinstance(scorer, CodeScorer):
            return scorer(doc, results[0], CodeOptions(allow_code_execution=True)).as_numbers()
        return scorer(doc, results[0]).as_numbers()

    config = prompt | {
        "task": name if subtask is None else f"{name}_{subtask}",
        "test_split": split,
        "num_fewshot": shots,
        "fewshot_config": {"sampler": "first_n", "samples": samples[:shots] or None},
        "output_type": "generate_until",
        "generation_kwargs": {"until": list(scorer.until), "do_sample": False, "max_gen_toks": definition.gen_length},
        "process_results": judged,
        "metric_list": [
            {"metric": verdict, "aggregation": "mean", "higher_is_better": True} for verdict in scorer.names
        ],
        "unsafe_code": scorer.runs_code,
    }
    return BenchmarkTask(name, subtask, definition, rows, config)


def tasks_of(task: BenchmarkTask | Group) -> list[BenchmarkTask]:
    return task.get_all_tasks() if isinstance(task, Group) else [task]


def requests(
    task: BenchmarkTask | Group, limit: int | None = None, chat_template: Callable[[str], str] | None = None
) -> list[Request]:
    """The first `limit` questions of a benchmark (None: all), in the order a run asks them.

    A group's subtasks are dealt in turn (item i of each before item i+1 of any), so that any prefix holds them evenly.
    `chat_template` wraps the one user turn and opens the model's.
    """
    members = tasks_of(task)
    longest = max(len(member.docs) for member in members)
    order = [(row, member) for row in range(longest) for member in members if row < len(member.docs)]
    return [_request(member, row, index, chat_template) for index, (row, member) in enumerate(order[:limit])]


def _request(member: BenchmarkTask, row: int, index: int, chat_template: Callable[[str], str] | None) -> Request:
    doc = member.docs[row]
    content = member.fewshot_text + member.doc_to_text(doc)
    key = doc[member.definition.id_field] if member.definition.id_field else row
    return Request(
        id=f"{member.name}/{member.subtask or member.config.test_split}/{key}",
        index=index,
        subtask=member.subtask,
        doc=doc,
        prompt_text=(chat_template(content) if chat_template else content) + (member.doc_to_prefix(doc) or ""),
        target=member.definition.target(doc),
        until=SCORERS[member.name].until,
    )


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fewshot_sha256(task: BenchmarkTask | Group) -> str:
    """Hash of the shots as rendered: the same for every method and model."""
    return _sha256([member.fewshot_text for member in tasks_of(task)])


def data_sha256(task: BenchmarkTask | Group) -> str:
    """Hash of the items asked, whatever they were read from."""
    return _sha256([member.docs for member in tasks_of(task)])


def task_hash(task: BenchmarkTask | Group) -> str:
    """Hash of what was asked and how it is judged, items aside: templates, shots, stop strings, scorer."""
    keys = (
        "task",
        "description",
        "doc_to_text",
        "doc_to_target",
        "target_delimiter",
        "fewshot_delimiter",
        "gen_prefix",
    )
    return _sha256(
        [
            [{key: member.config[key] for key in keys}, member.fewshot_text, SCORERS[member.name].until, member.name]
            for member in tasks_of(task)
        ]
    )


def task_record(task: BenchmarkTask | Group) -> dict[str, Any]:
    """What a run's manifest says about its benchmark."""
    members = tasks_of(task)
    return {
        "benchmark": members[0].name,
        "subtasks": [member.subtask for member in members if member.subtask],
        "items": sum(len(member.docs) for member in members),
        "num_fewshot": members[0].config.num_fewshot,
        "task_sha256": task_hash(task),
        "fewshot_sha256": fewshot_sha256(task),
        "data_sha256": data_sha256(task),
        "until": list(SCORERS[members[0].name].until),
    }
