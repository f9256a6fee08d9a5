"""What a model family contributes: how its config and tensors are named. A new family is one such record (see
`llada.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from entropycache.types import ModelSpec


@dataclass(frozen=True)
class Slot:
    """A tensor on disk and the rows [start, start + rows) of the parameter that it fills (`rows=None`: all of it).
    `head_dim` where they make queries or keys, whose rows are ordered otherwise on disk (`attention.in_pairs`).
    """

    disk: str
    parameter: str
    start: int = 0
    rows: int | None = None
    head_dim: int | None = None

    @staticmethod
    def stacked(parameter: str, spec: ModelSpec, q: str, k: str, v: str) -> list[Slot]:
        """The fused query/key/value projection from a family's three (weights, and biases where the family has
        them).
        """
        sizes = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.head_dim)
        starts = (0, sizes[0], sizes[0] + sizes[1])
        kinds = ("weight", "bias") if spec.qkv_bias else ("weight",)
        return [
            Slot(f"{name}.{kind}", f"{parameter}.{kind}", start, rows, None if name == v else spec.head_dim)
            for kind in kinds
            for name, start, rows in zip((q, k, v), starts, sizes, strict=True)
        ]


@dataclass(frozen=True)
class Family:
    """Names of one model family. `required` are config values that the shared transformer implies; another value is
    refused.
    """

    name: str
    model_type: str
    required: Mapping[str, Any]
    spec: Callable[[Mapping[str, Any], Mapping[str, int]], ModelSpec]
    config: Callable[[ModelSpec], dict[str, Any]]
    slots: Callable[[ModelSpec], list[Slot]]
    chat_template: str
