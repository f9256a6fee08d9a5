"""The benchmarks: definitions, items and prompts (DESIGN.md §7)."""

from evaluation.benchmarks.definitions import DEFINITIONS
from evaluation.benchmarks.task import (
    BenchmarkTask,
    Request,
    data_sha256,
    fewshot_sha256,
    load_task,
    requests,
    task_hash,
    task_record,
)

__all__ = [
    "DEFINITIONS",
    "BenchmarkTask",
    "Request",
    "data_sha256",
    "fewshot_sha256",
    "load_task",
    "requests",
    "task_hash",
    "task_record",
]
