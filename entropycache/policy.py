"""Cache policies decide, before each step, whose keys and values are computed. The protocol, and EntropyCache
itself.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from entropycache.models.transformer import AttentionObserver, Model
from entropycache.settings import flag, real, whole
from entropycache.types import Commit, ModelSpec, Plan, SequenceState


@runtime_checkable
class CachePolicy(Protocol):
    """One sequence's cache policy. An instance is configuration; `start` makes it ready for a fresh sequence.

    The engine copies the instance it was given for every sequence and calls, in each step, `plan`, then the forward
    pass, then `observe`. Subclass it to inherit the defaults: the model as it is, no entropy, no observer, nothing to
    remember.
    """

    needs_entropy: bool = False  # whether the engine computes the entropy of the rows just committed
    reads_all_masks: bool = False  # whether it may have every masked row read, whatever the window
    reads_attention: bool = False  # whether it has an observer, whose weights the fused path does not give
    windows: tuple[str, ...] = ("blockwise", "sliding", "whole")  # the decoding's windows that it works with

    def wrap(self, model: Model) -> Model:
        """The model that runs this method: the given one, unless the method steers inside the forward pass."""
        return model

    def start(self, model: Model, state: SequenceState) -> None:
        """Forget any earlier sequence; `state` is the prompt and a canvas of masks."""
        return None

    def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
        """What to compute in the coming step, given the masked rows that are up. The first plan must be a refresh."""
        ...

    def observer(self) -> AttentionObserver | None:
        """Who looks at the attention of the coming step; None keeps the fused attention path."""
        return None

    def observe(self, state: SequenceState, commit: Commit) -> None:
        """What the step committed; `state` is the sequence after it."""
        return None

    def extra_bytes(self, spec: ModelSpec, rows: int, dtype: torch.dtype) -> int:
        """The most memory that the method takes for a sequence of `rows` rows beyond keys, values and the usual
        temporaries.
        """
        return 0


class EntropyCache(CachePolicy):
    """EntropyCache (arXiv 2603.18489): refresh every row when the tokens just decoded were uncertain, else recompute
    only a few.

    After each commit, E = the largest entropy -Σ p ln p (nats, full vocabulary, raw logits) among the tokens just
    decoded. The next step refreshes if E > tau; otherwise it computes the window's masked rows and the k most recently
    decoded tokens, whose values are still moving. The signal costs O(V) per decoded token, whatever the context length
    and depth; the state kept is one flag and k rows.

    The history is ordered by step, newest first; inside a step by entropy, highest first; then by row. k counts tokens,
    not steps, so the cost of a step stays bounded when many tokens are committed at once. Masks beyond the window stay
    as last computed.

    The paper is silent on the order inside one step and on new windows: `refresh_on_new_window` (off) refreshes when no
    row of the window was in the one before. tau = -1 refreshes at every step; tau = inf never does after the first.
    """

    needs_entropy = True

    def __init__(self, tau: float, k: int, refresh_on_new_window: bool = False) -> None:
        self.tau = real("tau", tau, lambda x: x >= -1, "-1 (refresh at every step), or above, up to inf (never)")
        self.k = whole("k", k, 0, "tokens")
        self.refresh_on_new_window = flag("refresh_on_new_window", refresh_on_new_window)

    def start(self, model: Model, state: SequenceState) -> None:
        self.refresh = True
        self.recent = torch.empty(0, dtype=torch.long)
        self.window: frozenset[int] = frozenset()

    def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
        new_window = self.refresh_on_new_window and self.is_new_window(predict)
        if self.refresh or new_window:
            return Plan(state.all_rows, refresh=True)
        return Plan(torch.cat([predict, self.recent]), refresh=False)

    def observe(self, state: SequenceState, commit: Commit) -> None:
        assert commit.entropy is not None
        newest = commit.rows[commit.entropy.argsort(descending=True, stable=True)]
        self.recent = torch.cat([newest, self.recent])[: self.k]
        self.refresh = self.tau < 0 or (len(commit) > 0 and commit.entropy.max().item() > self.tau)

    def is_new_window(self, predict: Int[Tensor, " p"]) -> bool:
        """Whether no row of the window was in the window of the step before."""
        before, self.window = self.window, frozenset(predict.tolist())
        return not before & self.window
