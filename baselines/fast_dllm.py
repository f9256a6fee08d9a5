"""Fast-dLLM: keys and values are refreshed at each block's start and kept outside the block until it is finished.

Paper: arXiv 2505.22618. Read: NVlabs/Fast-dLLM@24cc59e, `llada/generate.py` and
`dream/model/generation_utils_block.py`.
"""

from __future__ import annotations

from typing import Literal, get_args

from jaxtyping import Int
from torch import Tensor

from entropycache.models.transformer import Model
from entropycache.policy import CachePolicy
from entropycache.settings import choice
from entropycache.types import Plan, SequenceState

Variant = Literal["prefix", "dual"]
FirstStep = Literal["rule", "one"]
Rows = Literal["block", "sources"]


class FastDLLM(CachePolicy):
    """At a block's first step: refresh, and commit from that pass. In the block's later steps `prefix` computes the
    block and everything right of it, `dual` the block alone. Which tokens are committed is the decoding's business: the
    paper's `threshold` and `factor` rules go with this cache, and are independent of it.

    Two points on which the public codes differ are options:
    - `first_step`: `rule` applies the commit rule to the block's first pass (LLaDA's code); `one` commits the block's
      first row from it, whatever its confidence (Dream's code).
    - `rows`, for shifted models: `block` computes the block's own rows (the authors' code); `sources` the rows that
      their tokens are read from, one to the left (`prefix_cache.py` of Kamichanw/d2Cache@72feb60). The engine adds the
      source of a masked row where it is not among them: with `block` and `rule`, the row before the block.

    Deviation: the authors' LLaDA loop makes one more forward pass after a first pass that finished the block, from
    which nothing is decoded; the engine does not.

    The state kept is the block's first and last row; nothing in the model is looked at."""

    windows = ("blockwise", "whole")

    def __init__(self, variant: Variant, first_step: FirstStep = "rule", rows: Rows = "block") -> None:
        for name, value, kind in (
            ("variant", variant, Variant),
            ("first_step", first_step, FirstStep),
            ("rows", rows, Rows),
        ):
            choice(f"fast_dllm {name}", value, get_args(kind))
        self.variant, self.first_step, self.rows = variant, first_step, rows

    def start(self, model: Model, state: SequenceState) -> None:
        self.model = model
        self.first = self.last = -1

    def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
        if int(predict[0]) > self.last:  # a new block: all of its rows are masked
            self.first, self.last = int(predict[0]), int(predict[-1])
            one = self.first_step == "one"
            return Plan(state.all_rows, refresh=True, predict=predict[:1] if one else None, commit_all=one)
        rows = state.all_rows[self.first : None if self.variant == "prefix" else self.last + 1]
        if self.rows == "sources":
            rows = self.model.sources(rows).unique()
        return Plan(rows, refresh=False)
