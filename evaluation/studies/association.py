"""How well one quantity tells of another: correlation, ROC curve and its area, shares caught at an equal rate.

Intervals come from a bootstrap over prompts: the steps of one prompt are drawn together, since they resemble one
another. A resample is a row of weights, how often each observation was drawn; the first row is the sample itself, and
every figure is computed for all rows at once. What cannot be had (of a constant, of no positives) is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Weights = NDArray[np.float64]  # [1 + resamples, observations]

RESAMPLES = 2000
CONFIDENCE = 0.95
MISSING = 0.05


class Estimate(NamedTuple):
    """A figure with its interval (NaN where there are too few prompts for one)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """As sentences give it: "0.41 [0.30, 0.52]"."""
        return f"{self.value:.2f}" if np.isnan(self.low) else f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def resamples(groups: Sequence[object], seed: int = 0, count: int = RESAMPLES) -> Weights:
    """Weights of the sample itself and of `count` resamples of its groups (`groups` names each observation's)."""
    names, place = np.unique(np.asarray(groups), return_inverse=True)
    n = max(1, len(names))
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=count if n > 1 else 0)
    return np.concatenate([np.ones((1, n)), drawn])[:, place]


def estimate(values: Vector) -> Estimate:
    """The figure of the sample, and the percentile interval of those of its resamples; none where more than
    `MISSING` of these have no such figure, as with a handful of prompts: the rest would be no fair draw.
    """
    known = values[1:][~np.isnan(values[1:])]
    if known.size <= (1 - MISSING) * len(values[1:]):
        return Estimate(float(values[0]), np.nan, np.nan)
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(values[0]), float(low), float(high))


def pearson(x: Vector, y: Vector, weights: Weights) -> Vector:
    """Pearson's correlation in every resample."""
    return _correlation(np.broadcast_to(x, weights.shape), np.broadcast_to(y, weights.shape), weights)


def spearman(x: Vector, y: Vector, weights: Weights) -> Vector:
    """Spearman's: Pearson's of the ranks within the resample, ties at their mean rank."""
    return _correlation(_ranks(x, weights), _ranks(y, weights), weights)


def area(score: Vector, positive: NDArray[np.bool_], weights: Weights) -> Vector:
    """Area under the ROC curve: the chance that a positive scores above a negative, ties counting half."""
    _, level = np.unique(score, return_inverse=True)
    above, below = (_by_level(weights * chosen, level) for chosen in (positive, ~positive))
    won = (above * (below.cumsum(axis=1) - below / 2)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return won / (above.sum(axis=1) * below.sum(axis=1))


def roc(score: Vector, positive: NDArray[np.bool_]) -> tuple[Vector, Vector]:
    """(false positive rate, true positive rate) at every distinct threshold, from (0, 0) to (1, 1)."""
    _, level = np.unique(-score, return_inverse=True)
    false, true = (_by_level(chosen[None].astype(float), level)[0].cumsum() for chosen in (~positive, positive))
    return np.concatenate([[0.0], false / false[-1]]), np.concatenate([[0.0], true / true[-1]])


def caught(score: Vector, positive: NDArray[np.bool_], rate: float) -> float:
    """Share of the positives among the `rate` of rows that score highest; rows that tie at the edge count in part."""
    _, level = np.unique(-score, return_inverse=True)
    size, found = (_by_level(chosen[None].astype(float), level)[0] for chosen in (np.ones_like(positive), positive))
    taken = np.clip(rate * len(score) - (size.cumsum() - size), 0, size)
    return float((found * taken / size).sum() / found.sum()) if found.sum() else float("nan")


def _by_level(weights: Weights, level: NDArray[np.intp]) -> Weights:
    """Weights summed over observations of equal value, [resamples, values]."""
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    return np.add.reduceat(weights[:, order], starts, axis=1)


def _ranks(x: Vector, weights: Weights) -> Weights:
    """Mean ranks of the values within each resample."""
    _, level = np.unique(x, return_inverse=True)
    size = _by_level(weights, level)
    return (size.cumsum(axis=1) - size / 2)[:, level]


def _correlation(x: Weights, y: Weights, weights: Weights) -> Vector:
    if weights.shape[1] < 2:
        return np.full(len(weights), np.nan)
    total = weights.sum(axis=1, keepdims=True)
    x, y = (values - (weights * values).sum(axis=1, keepdims=True) / total for values in (x, y))
    spread = np.sqrt((weights * x * x).sum(axis=1) * (weights * y * y).sum(axis=1))
    with np.errstate(invalid="ignore"):
        return np.where(spread > 0, (weights * x * y).sum(axis=1) / spread, np.nan)
