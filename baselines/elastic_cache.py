"""Elastic-Cache: a sliding window, and a test in mid-forward of whether the deeper layers' cache has drifted.

Paper: arXiv 2510.14973. The rule is built from the paper; the settings of the authors' evaluation scripts are in
`conf/method/elastic_cache.yaml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from entropycache.kv_cache import KVCache
from entropycache.memory import observed_bytes
from entropycache.models.attention import observed_attention
from entropycache.models.transformer import AttentionObserver, Model, StepInput, Transformer
from entropycache.policy import CachePolicy
from entropycache.settings import real, whole
from entropycache.types import Commit, ModelSpec, Plan, SequenceState


class ElasticCache(CachePolicy):
    """First step: refresh. Then the compute set is the window's masked rows, the rows committed in the last step and
    every layer's tracked rows. Layer by layer, the attention weights (averaged over heads) of the layer's own tracked
    rows, laid end to end, are compared by one cosine similarity with the same rows' weights as last computed; at the
    first layer where it falls below `gamma`, all deeper layers compute every row, from the hidden states kept at this
    layer's output (rows not computed now: as last computed). After the forward pass a layer's tracked rows are the
    `tracked` rows committed before this step, prompt included, that the window's rows attend to most; ties: the lower
    row. Masks beyond the window stay as last computed.

    The window is the decoding's: `Decoding(window="sliding", window_length=...)`; the paper's commit rule is the
    threshold.

    Where the paper leaves room: the rows of one step are the same in every layer up to the one that widens; a row newly
    tracked is compared with its weights from whenever it was last computed, and for that the weights of all rows are
    kept; for shifted models "the window's rows" are the rows that the window is read from; where nothing is committed
    yet (an empty prompt) there is nothing to compare and the similarity counts as 1. `gamma` = -1 never widens a layer;
    above 1 the second layer and all after it compute every row in every step.

    Kept per sequence: every layer's output, as large as the keys, and its attention weights, [layers, t, t] in float32.
    Every layer's decision is waited for before the next layer starts, one device synchronise for all packed sequences
    together, until every one of them has widened."""

    reads_attention = True

    def __init__(self, gamma: float = 0.9, tracked: int = 1) -> None:
        self.gamma = real("gamma", gamma, lambda x: x >= -1, "-1 (never widen) or above")
        self.tracked = whole("tracked", tracked, 1, "rows a layer")

    def wrap(self, model: Model) -> Model:
        return ElasticModel(cast(Transformer, model))

    def start(self, model: Model, state: SequenceState) -> None:
        self.model = model
        self.weights: Float[Tensor, "l t t"] | None = None
        self.attended: list[Float[Tensor, " t"]] = []  # of this step, by the window's rows, a layer each
        self.committed = state.all_rows[:0]
        self.tracked_rows = torch.empty((model.spec.layers, 0), dtype=torch.long)

    def extra_bytes(self, spec: ModelSpec, rows: int, dtype: torch.dtype) -> int:
        maps = 4 * spec.layers * rows**2
        return maps + (spec.layers - 1) * rows * spec.hidden * dtype.itemsize + observed_bytes(rows)

    def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
        self.settled = (~state.masked).nonzero().squeeze(1)
        self.window = self.model.sources(predict)
        if state.step == 0:
            self.compute = state.all_rows
        else:
            self.compute = torch.cat([predict, self.window, self.committed, self.tracked_rows.flatten()]).unique()
        return Plan(self.compute, refresh=state.step == 0)

    def observer(self) -> AttentionObserver:
        return self.watch

    def watch(self, layer: int, mean: Float[Tensor, "q t"]) -> Bool[Tensor, ""] | None:
        """Whether the layers above must compute every row; None where this one does already."""
        if layer == 0:
            self.place(mean)
        assert self.weights is not None
        before = self.weights[layer]
        if mean.shape[0] == mean.shape[1]:
            self.attended.append(mean[self.window_rows].sum(dim=0))
            before.copy_(mean)
            return None
        self.attended.append(mean[self.window_at].sum(dim=0))
        now, then = mean[self.tracked_at[layer]], before[self.tracked_on_device[layer]]
        drifted = similarity(now, then) < self.gamma
        before.index_copy_(0, self.compute_on_device, mean)
        return drifted

    def place(self, mean: Float[Tensor, "q t"]) -> None:
        """This step's row indices on the device of the weights, absolute and as positions in the compute set."""
        if self.weights is None:
            rows = mean.shape[1]
            self.weights = mean.new_empty((self.model.spec.layers, rows, rows))
        self.window_rows, self.window_at, self.tracked_on_device, self.tracked_at, self.compute_on_device = (
            index.to(mean.device, non_blocking=True)
            for index in (
                self.window,
                torch.searchsorted(self.compute, self.window),
                self.tracked_rows,
                torch.searchsorted(self.compute, self.tracked_rows),
                self.compute,
            )
        )

    def observe(self, state: SequenceState, commit: Commit) -> None:
        self.committed = commit.rows
        settled = self.settled.to(self.attended[0].device)
        left = torch.stack(self.attended)[:, settled]
        best = []
        for _ in range(min(self.tracked, len(settled))):
            first = left.argmax(dim=1, keepdim=True)  # of equals the first
            left.scatter_(1, first, -torch.inf)
            best.append(settled[first])
        self.tracked_rows = torch.cat(best, dim=1).cpu() if best else self.tracked_rows
        self.attended = []


def similarity(now: Float[Tensor, "n t"], then: Float[Tensor, "n t"]) -> Float[Tensor, ""]:
    """Cosine of two sets of attention rows, each laid end to end; 1 where there is nothing to compare."""
    if not now.numel():
        return now.new_ones(())
    return F.cosine_similarity(now.flatten(), then.flatten(), dim=0)


class HiddenCache(KVCache):
    """Keys and values, and each layer's output of every row as last computed (of all layers that have a next)."""

    def __init__(self, spec: ModelSpec, rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, rows, device=device, dtype=dtype)
        self.hidden = torch.empty((spec.layers - 1, rows, spec.hidden), device=device, dtype=dtype)

    def keep(self, layer: int, rows: Int[Tensor, " q"], x: Float[Tensor, "q d"]) -> Float[Tensor, "t d"]:
        """Store the given rows of a layer's output; returns all rows of it."""
        kept = self.hidden[layer]
        return kept.copy_(x) if rows.numel() == self.rows else kept.index_copy_(0, rows, x)


@dataclass
class Lane:
    """One sequence in the packed rows: its part of the step, and the rows (device indices) that travel for it."""

    step: StepInput
    cache: HiddenCache
    rows: Int[Tensor, " q"]


class ElasticModel:
    """The transformer with a layer loop in which a sequence may widen to all of its rows between two layers, as its
    observer says."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.spec, self.device, self.dtype = model, model.spec, model.device, model.dtype

    def sources(self, predict: Int[Tensor, " p"]) -> Int[Tensor, " p"]:
        return self.model.sources(predict)

    def new_cache(self, rows: int) -> KVCache:
        return HiddenCache(self.spec, rows, device=self.model.device, dtype=self.model.dtype)

    def forward_packed(self, steps: Sequence[StepInput]) -> Float[Tensor, "p v"]:
        model = self.model
        lanes = []
        for step in steps:
            step.cache.expect(step.compute)
            cache = cast(HiddenCache, step.cache)
            lanes.append(Lane(step, cache, step.compute.to(model.device, non_blocking=True)))
        table = model.rope(max(lane.cache.rows for lane in lanes))
        ids = torch.cat([step.tokens[step.compute] for step in steps])
        x = model.embed(ids.to(model.device, non_blocking=True))
        rope = table[torch.cat([lane.rows for lane in lanes])]
        with model.scratch(sum(lane.cache.rows for lane in lanes)) as scratch:
            for index, layer in enumerate(model.layers):
                attended, drifted = self.attend(index, x, rope, lanes, scratch)
                x = layer.finish(x, attended, scratch)
                del attended
                if index == self.spec.layers - 1:
                    break
                sizes = [lane.rows.numel() for lane in lanes]
                kept = [lane.cache.keep(index, lane.rows, own) for lane, own in zip(lanes, x.split(sizes), strict=True)]
                widened = yes(drifted)
                if any(widened):
                    own = list(x.split(sizes))
                    for at in (at for at, wide in enumerate(widened) if wide):
                        lanes[at].rows = torch.arange(lanes[at].cache.rows, device=model.device)
                        own[at] = kept[at]
                    x = torch.cat(own)  # a copy in any case: the layers write over what they are given
                    rope = table[torch.cat([lane.rows for lane in lanes])]
        return self.read_out(x, lanes)

    def attend(
        self,
        index: int,
        x: Float[Tensor, "n d"],
        rope: Complex[Tensor, "n 1 pairs"],
        lanes: Sequence[Lane],
        scratch: Tensor | None,
    ) -> tuple[Float[Tensor, "n d"], tuple[Bool[Tensor, ""] | None, ...]]:
        """One layer's attention of all sequences, and what their observers say of it."""
        sizes = [lane.rows.numel() for lane in lanes]
        q, kv = self.model.layers[index].project(x, rope, scratch)
        parts = zip(lanes, q.split(sizes), kv.split(sizes), strict=True)
        attended, drifted = zip(*(attend_one(index, *part) for part in parts), strict=True)
        return attended[0] if len(lanes) == 1 else torch.cat(attended), drifted

    def read_out(self, x: Float[Tensor, "n d"], lanes: Sequence[Lane]) -> Float[Tensor, "p v"]:
        """Logits of the predicted rows, or of every row that the steps asked to compute (`predict_all`)."""
        own = []
        for lane, part in zip(lanes, x.split([lane.rows.numel() for lane in lanes]), strict=True):
            asked = lane.step.compute
            own.append(part if len(part) == len(asked) else part[asked.to(part.device)])
        x, steps = torch.cat(own), [lane.step for lane in lanes]
        sources = self.model.packed_sources(steps)
        return self.model.read_out(x)[sources] if steps[0].predict_all else self.model.read_out(x[sources])


def attend_one(
    index: int, lane: Lane, q: Float[Tensor, "q h e"], kv: Float[Tensor, "q 2 kv e"]
) -> tuple[Float[Tensor, "q d"], Bool[Tensor, ""] | None]:
    """Attention of one sequence, and what its observer says of it."""
    assert lane.step.observer is not None, "Elastic-Cache decides from the attention: its steps have an observer"
    k_all, v_all = lane.cache.write(index, lane.rows, kv)
    attended, weights = observed_attention(q, k_all, v_all)
    return attended, cast("Tensor | None", lane.step.observer(index, weights))


def yes(answers: Sequence[Bool[Tensor, ""] | None]) -> list[bool]:
    """The answers on the host, in one transfer; None is no."""
    given = [answer for answer in answers if answer is not None]
    values = iter(torch.stack(given).tolist()) if given else iter(())
    return [answer is not None and next(values) for answer in answers]
