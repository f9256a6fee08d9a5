"""Full recompute: no cache. Every step computes every row; the reference that speedups and accuracies are measured
against.
"""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from entropycache.policy import CachePolicy
from entropycache.types import Plan, SequenceState


class FullRecompute(CachePolicy):
    """Every plan is a refresh, as in the families' own samplers (LLaDA `generate.py@b7e6c356`, Dream
    `generation_utils.py`).

    The head runs only on the predicted rows, for this method as for every other, so this baseline is faster than the
    published ones."""

    def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
        return Plan(state.all_rows, refresh=True)
