"""Analytic cost of forward passes: two floating-point operations per multiply-add of every matrix product, nothing
else.
"""

from __future__ import annotations

from entropycache.types import ModelSpec


def layer_flops(spec: ModelSpec, computed: int, rows: int) -> int:
    """One layer over `computed` rows that attend to `rows` rows: projections, feed-forward, scores and weighted
    values.
    """
    d, f = spec.hidden, spec.intermediate
    products = d * spec.qkv_rows + d * d + 3 * d * f
    return 2 * computed * (products + 2 * rows * d)


def head_flops(spec: ModelSpec, predicted: int) -> int:
    """The head over the predicted rows."""
    return 2 * predicted * spec.hidden * spec.vocab


def step_flops(spec: ModelSpec, rows_written: int, rows: int, predicted: int) -> int:
    """One step in which `rows_written` rows were computed, summed over layers, in a sequence of `rows` rows."""
    return layer_flops(spec, rows_written, rows) + head_flops(spec, predicted)
