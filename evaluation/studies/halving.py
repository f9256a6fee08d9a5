"""Successive halving over settings that trade accuracy for cost: which is the cheapest within a tolerated loss?

Accuracy is paired: a setting's verdicts are held against the reference's on the same prompts, so that a prompt's
difficulty cancels. Pure numbers in, numbers out; who answers the prompts is the caller's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Setting = TypeVar("Setting", bound=Hashable)
Z = 1.96  # of the 95 % interval


@dataclass(frozen=True)
class Outcome:
    """What came of some prompts: whether each was answered right, and what each cost."""

    correct: Sequence[bool]
    cost: Sequence[float]


@dataclass(frozen=True)
class Trial(Generic[Setting]):
    """A setting beside the reference after `n` prompts.

    `loss` is the reference's accuracy less the setting's, from `low` to `high` (95 %); `cost` a share of the
    reference's; `within` the probability that the true loss is within the tolerance. `rung` counts from 0.
    """

    setting: Setting
    rung: int
    n: int
    accuracy: float
    loss: float
    low: float
    high: float
    cost: float
    within: float

    @property
    def saving(self) -> float:
        """What choosing the setting is expected to save, if nothing is saved where its loss is too large."""
        return self.within * (1 - self.cost)


@dataclass(frozen=True)
class Search(Generic[Setting]):
    """All trials in order, and the one chosen; None where no setting is good enough."""

    trials: list[Trial[Setting]]
    chosen: Trial[Setting] | None


def compare(setting: Setting, rung: int, reference: Outcome, outcome: Outcome, tolerance: float) -> Trial[Setting]:
    """A setting's outcome beside the reference's on as many prompts.

    The loss is (b - c) / n, b prompts that the reference alone got right, c that the setting alone did. Its spread is
    that of the paired difference with half a prompt added to b and to c: no loss seen on a few prompts is no proof of
    none.
    """
    n = len(outcome.correct)
    pairs = list(zip(reference.correct[:n], outcome.correct, strict=True))
    b, c = (sum(one and not other for one, other in order) for order in (pairs, [pair[::-1] for pair in pairs]))
    loss = (b - c) / n
    spread = math.sqrt(max(b + c + 1 - (b - c) ** 2 / n, 1)) / n
    within = 0.5 * (1 + math.erf((tolerance - loss) / spread / math.sqrt(2)))
    cost = math.fsum(outcome.cost) / math.fsum(reference.cost[:n])
    accuracy = sum(outcome.correct) / n
    return Trial(setting, rung, n, accuracy, loss, loss - Z * spread, loss + Z * spread, cost, within)


def search(
    settings: Sequence[Setting],
    reference: Outcome,
    ask: Callable[[Setting, int], Outcome],
    *,
    tolerance: float,
    confidence: float,
    prompts: int,
    rungs: int,
) -> Search[Setting]:
    """Try every setting on a few prompts, the better half on twice as many, and so on; choose among those of the last
    rung the cheapest whose loss is within the tolerance with probability `confidence`.

    Better is what is expected to save more (`Trial.saving`): a cheap setting whose loss is probably too large comes
    after a dearer one that is probably good. `ask(setting, n)` gives the outcome of the first n prompts; it is asked
    for prompts / 2^(rungs - 1), ..., prompts / 2, prompts. The last rung's settings are those that a last halving left.
    """
    trials: list[Trial[Setting]] = []
    left = list(settings)
    for rung in range(rungs):
        n = prompts >> (rungs - 1 - rung)
        tried = [compare(setting, rung, reference, ask(setting, n), tolerance) for setting in left]
        trials += tried
        ranked = sorted(tried, key=lambda trial: (-trial.saving, trial.cost))
        left = [trial.setting for trial in ranked[: max(1, math.ceil(len(ranked) / 2))]]
    good = [trial for trial in trials if trial.n == prompts and trial.within >= confidence and trial.cost < 1]
    return Search(trials, min(good, key=lambda trial: trial.cost, default=None))
