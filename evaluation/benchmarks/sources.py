"""Where a benchmark's items come from: the hub, a folder of official files, or a generator. Rows in, rows out."""

import functools
import gzip
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.benchmarks.definitions import Definition

Row = dict[str, Any]
HUB, GENERATED = "hub", "generated"
SPARE = 60  # items drawn beyond twice the number wanted, since a draw is of any subtask


def default_source(definition: Definition) -> str:
    return GENERATED if definition.generator else HUB


def read_items(
    name: str, definition: Definition, split: str, data: str, subtask: str | None, count: int, seed: int
) -> list[Row]:
    """The items of one split in published order.

    `data` is "hub", "generated" (mini benchmarks: `count` items from `seed`) or a folder laid out as DESIGN.md §7
    says. Raises ValueError or FileNotFoundError in one line that names what is missing and what would do.
    """
    if (data == GENERATED) != bool(definition.generator):
        allowed = f"benchmark.data={GENERATED}" if definition.generator else f"benchmark.data={HUB} or a folder"
        raise ValueError(f"{name}: benchmark.data={data} is not where its items come from; use {allowed}")
    if data == GENERATED:
        return generated(definition, split, subtask, count, seed)
    rows = (
        from_hub(name, definition, split, subtask)
        if data == HUB
        else from_folder(name, definition, split, data, subtask)
    )
    kept = [row for row in rows if definition.rows is None or definition.rows(row)]
    if not kept:
        raise ValueError(f"{name}: no items in split {split} of benchmark.data={data}")
    for number, row in enumerate(kept):
        if lacking := [field for field in definition.fields if row.get(field) is None]:
            raise ValueError(
                f"{name}: item {number} of benchmark.data={data} lacks {lacking[0]}; is it the published data?"
            )
    return kept


def generated(definition: Definition, split: str, subtask: str | None, count: int, seed: int) -> list[Row]:
    """`count` items of a mini benchmark, shared evenly among its subtasks; of "fewshot", `count` of each subtask."""
    if subtask is None:
        return list(drawn(definition.generator, split, count, seed))
    share, rest = divmod(count, len(definition.subtasks))
    wanted = count if split == "fewshot" else share + (definition.subtasks.index(subtask) < rest)
    many = SPARE + 2 * len(definition.subtasks) * wanted
    return [row for row in drawn(definition.generator, split, many, seed) if row["subtask"] == subtask][:wanted]


@functools.cache
def drawn(generator: str | None, split: str, count: int, seed: int) -> tuple[Row, ...]:
    """`count` items of a generator; a group's subtasks share one draw. Rows are read, never written."""
    return tuple(importlib.import_module(f"evaluation.benchmarks.mini.{generator}").items(split, count, seed))


def from_hub(name: str, definition: Definition, split: str, subtask: str | None) -> list[Row]:
    from datasets import load_dataset

    assert definition.hub is not None
    path, config = definition.hub
    config = config and config.format(subtask=subtask)
    try:
        dataset = load_dataset(path, config, split=definition.splits[split])
    except (OSError, ValueError) as error:  # no network, no such data set, no such configuration
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileNotFoundError(
            f"{name}: {path} cannot be read from the hub ({reason}); set benchmark.data=<folder> where "
            f"{definition.files[split].format(subtask=subtask)} lies"
        ) from error
    return [dict(row) for row in dataset]


def from_folder(name: str, definition: Definition, split: str, folder: str, subtask: str | None) -> list[Row]:
    path = Path(folder) / definition.files[split].format(subtask=subtask)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: no file {path}; put the official file there, or set benchmark.data={HUB}")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        text = file.read()
    try:
        if ".jsonl" in path.suffixes:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return list(json.loads(text)["examples"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: {path} is not the published file ({error}); fetch it again") from error


def same_keys(rows: list[Row]) -> list[Mapping[str, Any]]:
    """Rows with one set of fields, as a data set needs; a field that a row lacks is None."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in keys} for row in rows]
