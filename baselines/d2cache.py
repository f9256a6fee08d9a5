"""d2Cache: in every step a few rows are chosen anew, masked ones by certainty density, the rest by attention rollout.

Paper: arXiv 2509.23094. Read: Kamichanw/d2Cache@72feb60, `src/cache/d2cache.py`, `src/generation/vanilla.py`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from entropycache.decoding import certainty_density, rank
from entropycache.memory import observed_bytes
from entropycache.models.transformer import AttentionObserver, Model
from entropycache.policy import CachePolicy
from entropycache.settings import flag, real, whole
from entropycache.types import Commit, ModelSpec, Plan, SequenceState


class D2Cache(CachePolicy):
    """First step: refresh. After each commit the next compute set is the union of

    1. the `current_k` masked rows with the largest confidence x certainty density (a Gaussian of deviation `sigma` over
       the known rows; `decoding.certainty_density`), where a row's confidence is the one last read of it. Rows of the
       block just worked on come before all others (upstream: a bonus of the largest score); the search ends with the
       block that holds the `current_k`-th mask. For shifted models the rows that their tokens are read from;
    2. the rows just committed;
    3. of all rows not yet taken, by attention rollout: the most important ones up to a share `rollout_p` of their
       importance, at least one;
    4. with `inflate_w` > 0, what lies between two taken rows that are at most `inflate_w` apart.

    Every masked row whose source is in the set is read, and those of them that are up can be committed. The method's
    own decoding, "certainty prior", is `Decoding(window="whole", certainty_sigma=...)`.

    Rollout: R <- rownorm(A + I) R over the layers, A the attention averaged over heads, rows not computed identity; the
    importance is R's column sums. A's rows sum to one, so that the row's norm is 2. In a partial step no [t, t] product
    is made: the row vector of ones is taken through the layers from the last to the first, O(q·t) each, which is exact.
    That takes every layer's A at the end, [layers, q, t]; at the refresh, which comes once, it would be more than any
    other part of the step needs, and R itself is kept, [t, t].

    Deviations from the code that was read. By default the evident intent is followed where it does something else: the
    confidence kept is updated (there, the first step's is kept for ever), and the block's end is the block's (there, it
    shrinks as the block is decoded, an in-place edit). `as_published=True` has both as they stand. In either, rows not
    computed cannot be committed (there, they stay eligible with all-zero logits, which changed no output that was
    compared); of a new block one is always computed, since all its rows are masks and fewer than a block's are left
    out. For shifted models the last prompt row is in the set if and only if the first canvas row was
    taken by 1, whatever the rollout says, as there."""

    reads_all_masks = True
    reads_attention = True

    def __init__(
        self,
        rollout_p: float = 0.1,
        current_k: int = 32,
        sigma: float = 10.0,
        inflate_w: int = 0,
        as_published: bool = False,
    ) -> None:
        self.rollout_p = real("rollout_p", rollout_p, lambda x: 0 <= x <= 1, "a share between 0 and 1")
        self.current_k = whole("current_k", current_k, 1, "rows")
        self.sigma = real("sigma", sigma, lambda x: x > 0, "a number of rows above 0")
        self.inflate_w = whole("inflate_w", inflate_w, 0, "rows")
        self.as_published = flag("as_published", as_published)

    def start(self, model: Model, state: SequenceState) -> None:
        self.model = model
        self.attention: list[Float[Tensor, "q t"]] = []  # of a partial step, averaged over heads, a layer each
        self.rollout: Float[Tensor, "t t"] | None = None  # of a refresh, up to the layer last seen
        self.confidence: Float[Tensor, " g"] | None = None  # last read of each canvas row
        self.committed = self.read = self.up = self.compute = state.all_rows[:0]
        self.importance: Float[Tensor, " t"] | None = None

    def extra_bytes(self, spec: ModelSpec, rows: int, dtype: torch.dtype) -> int:
        refresh = 2 * 4 * rows**2 + observed_bytes(rows)  # the rollout, before and after a layer
        # by certainty and by importance, of which the most important rows have at least their share; committed: as many
        taken = 2 * (self.current_k + math.ceil(self.rollout_p * rows) + 1) * (1 + self.inflate_w)
        partial = 4 * spec.layers * min(rows, taken) * rows  # a weight of each layer
        return max(refresh, partial + observed_bytes(rows))

    def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
        if self.importance is None:
            self.block_length = len(predict)
            self.read, self.compute = state.masked_rows(state.prompt_length, state.length), state.all_rows
            self.up = predict
            return Plan(self.compute, refresh=True, predict=self.read)
        taken = self.choose(state)
        masked = state.masked_rows(state.prompt_length, state.length)
        self.compute, self.read = taken.nonzero().squeeze(1), masked[taken[self.model.sources(masked)]]
        self.up = predict
        return Plan(self.compute, refresh=False, predict=self.read)

    def observer(self) -> AttentionObserver:
        return self.watch

    def watch(self, layer: int, weights: Float[Tensor, "q t"]) -> None:
        rows = weights.shape[1]
        if weights.shape[0] < rows:
            self.attention.append(weights)
            return
        before = self.rollout if layer else torch.eye(rows, device=weights.device, dtype=weights.dtype)
        assert before is not None
        self.rollout = torch.addmm(before, weights, before, beta=0.5, alpha=0.5)

    def observe(self, state: SequenceState, commit: Commit) -> None:
        assert commit.scores is not None
        if self.rollout is None:
            importance = rollout_importance(self.attention, self.compute)
        else:
            importance = self.rollout.sum(dim=0)
        self.importance, self.attention, self.rollout = importance.cpu(), [], None
        self.committed = commit.rows
        if self.confidence is None:
            self.confidence = commit.scores.clone()  # the first step reads every masked row: the whole canvas
        elif not self.as_published:
            self.confidence[self.read - state.prompt_length] = commit.scores

    def choose(self, state: SequenceState) -> Bool[Tensor, " t"]:
        """The next compute set."""
        assert self.importance is not None
        masked = self.densest(state)
        taken = torch.zeros(state.length, dtype=torch.bool)
        taken[self.model.sources(masked)] = True
        last_prompt_row = state.prompt_length - 1
        taken[: state.prompt_length] = False  # the source of the first canvas row is added when the rollout is done
        taken[self.committed] = True
        taken[nucleus(self.importance, ~taken, self.rollout_p)] = True
        if self.model.spec.shift and state.prompt_length:
            taken[last_prompt_row] = bool((masked == state.prompt_length).any())
        return inflate(taken, self.inflate_w) if self.inflate_w else taken

    def densest(self, state: SequenceState) -> Int[Tensor, " k"]:
        """The `current_k` masked rows with the largest confidence x density, those last worked on before all others."""
        assert self.confidence is not None
        masked = state.masked[state.prompt_length :]
        rows = masked.nonzero().squeeze(1)
        if len(rows) > self.current_k:
            unit = len(self.up) if self.as_published else self.block_length
            end = (int(rows[self.current_k - 1]) // unit + 1) * unit
            rows = rows[rows < end]
            density = certainty_density(~masked, self.sigma)[rows]
            score = self.confidence[rows] * density.to(self.confidence.dtype)
            beyond = ~torch.isin(rows, self.up - state.prompt_length)
            rows = rows[rank(score, beyond)[: self.current_k]]
        return rows + state.prompt_length


def rollout_importance(attention: list[Float[Tensor, "q t"]], rows: Int[Tensor, " q"]) -> Float[Tensor, " t"]:
    """Column sums of the rollout from each layer's attention rows of the computed `rows`: 1ᵀ·R_L···R_1, from the left.

    A layer maps the row vector w to w·(A + I)/2 on the computed rows and leaves the other entries where they are."""
    importance = attention[0].new_ones(attention[0].shape[1])
    rows = rows.to(importance.device)
    for weights in reversed(attention):
        half = importance[rows] / 2
        importance = importance.index_copy(0, rows, half) + half @ weights
    return importance


def nucleus(score: Float[Tensor, " t"], free: Bool[Tensor, " t"], share: float) -> Int[Tensor, " n"]:
    """Of the free rows the highest, as long as their sum is at most `share` of the free rows' sum; at least one."""
    rows = free.nonzero().squeeze(1)
    order = rows[score[rows].argsort(descending=True, stable=True)]
    mass = score[order].cumsum(0)
    within = int((mass <= share * mass[-1:]).sum())
    return order[: max(1, within)]


def inflate(taken: Bool[Tensor, " t"], width: int) -> Bool[Tensor, " t"]:
    """Fills the gaps between neighbouring taken rows at a distance of at most `width`."""
    rows = taken.nonzero().squeeze(1)
    close = rows.diff() <= width
    # +1 where a filled stretch begins and -1 where it ends: the running sum is above 0 inside
    edges = torch.zeros(taken.numel(), dtype=torch.long)
    edges[rows[:-1][close]] += 1
    edges[rows[1:][close]] -= 1
    return taken | (edges.cumsum(0) > 0)
