"""The bidirectional transformer of both families: RMSNorm, rotary positions, grouped heads, optional q/k/v bias,
SwiGLU.

A family contributes numbers (`ModelSpec`) and names (`llada.py`, `dream.py`), never a second model. Which rows are
computed is an argument; the model knows no policy. The rows of several sequences travel end to end through the norms,
projections, feed-forward and head, and part only in attention, where each sequence looks at its own cache: there is no
padding row anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from entropycache.kv_cache import KVCache
from entropycache.models.attention import attention, observed_attention, rope_table, rotate_
from entropycache.types import ModelSpec

AttentionObserver = Callable[[int, Float[Tensor, "q t"]], object]

ROWS_AT_ONCE = 1024  # through the feed-forward, whose temporaries are the widest


@dataclass(frozen=True)
class StepInput:
    """One sequence's part of a packed step. Index tensors live on the CPU, sorted; `tokens` are all of the sequence's.

    An `observer(layer, weights [q, t])` sees the attention rows of the compute set, averaged over heads, and forces the
    unfused attention path. `predict_all` runs the head over every computed row, as published samplers do, to measure
    what reading only some saves.
    """

    tokens: Int[Tensor, " t"]
    compute: Int[Tensor, " q"]
    predict: Int[Tensor, " p"]
    cache: KVCache
    observer: AttentionObserver | None = None
    predict_all: bool = False


@runtime_checkable
class Model(Protocol):
    """What the engine runs. `Transformer` is one; a method that steers inside the forward wraps it in another."""

    spec: ModelSpec

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def sources(self, predict: Int[Tensor, " p"]) -> Int[Tensor, " p"]: ...

    def new_cache(self, rows: int) -> KVCache: ...

    def forward_packed(self, steps: Sequence[StepInput]) -> Float[Tensor, "p v"]: ...


class Layer(nn.Module):
    """One block. Its three pieces are public, so that a loop other than `Transformer.forward_packed` can be built from
    them.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        d, f = spec.hidden, spec.intermediate
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Linear(d, spec.qkv_rows, bias=spec.qkv_bias)
        self.out = nn.Linear(d, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def project(
        self, x: Float[Tensor, "*b q d"], rope: Float[Tensor, "2 q 1 e"]
    ) -> tuple[Float[Tensor, "*b q h e"], Float[Tensor, "*b q kv e"], Float[Tensor, "*b q kv e"]]:
        """Queries, keys (both rotated) and values of the given rows."""
        spec = self.spec
        qkv = self.qkv(F.rms_norm(x, (spec.hidden,), self.attention_norm, spec.norm_eps))
        qkv = qkv.unflatten(-1, (spec.heads + 2 * spec.kv_heads, spec.head_dim))
        rotate_(qkv[..., : spec.heads + spec.kv_heads, :], rope)
        first_k, first_v = spec.heads, spec.heads + spec.kv_heads
        return qkv[..., :first_k, :], qkv[..., first_k:first_v, :], qkv[..., first_v:, :]

    def finish(self, x: Float[Tensor, "*b q d"], attended: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q d"]:
        """Residual of the attention's output projection, then of the feed-forward."""
        x = self.out(attended).add_(x)
        parts = [self.feed_forward(part).add_(part) for part in x.split(ROWS_AT_ONCE, dim=-2)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

    def feed_forward(self, x: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q d"]:
        gate, up = self.gate_up(F.rms_norm(x, (self.spec.hidden,), self.mlp_norm, self.spec.norm_eps)).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Layers(nn.ModuleList):
    """`nn.ModuleList` whose members are known to be layers."""

    def __getitem__(self, index: int) -> Layer:  # type: ignore[override]
        return super().__getitem__(index)  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Layer]:
        return super().__iter__()  # type: ignore[return-value]


class Transformer(nn.Module):
    """Weights of one checkpoint and the forward passes over them.

    `forward_full` is the plain bidirectional pass (training, and the oracle of the tests); `forward` and
    `forward_packed` compute some rows against a KV cache (decoding). Rotary tables are computed in float64 once and
    kept in float32, or float64 for a float64 model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.vocab, spec.hidden)
        self.layers = Layers(Layer(spec) for _ in range(spec.layers))
        self.norm = nn.Parameter(torch.ones(spec.hidden))
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        if spec.tied:
            self.head.weight = self.embed.weight
        self._rope: Float[Tensor, "2 n 1 e"] | None = None

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def sources(self, predict: Int[Tensor, " p"]) -> Int[Tensor, " p"]:
        """The rows whose output gives the tokens of the predicted rows: the one place that knows Dream's shift.

        Row 0 of a shifted model is read from itself (Fast-dLLM dream/model/generation_utils.py@24cc59e: the logits'
        first row is repeated).
        """
        return (predict - self.spec.shift).clamp_min(0)

    def new_cache(self, rows: int) -> KVCache:
        return KVCache(self.spec, rows, device=self.device, dtype=self.dtype)

    def rope(self, rows: int) -> Float[Tensor, "2 n 1 e"]:
        """Cosines and sines of the first `rows` positions (at least), [2, n, 1, head_dim], made once and kept.

        Raises ValueError where the sequence is longer than the positions that the model was made for.
        """
        if rows > self.spec.max_positions:
            raise ValueError(
                f"{rows} rows (prompt + canvas) exceed the model's {self.spec.max_positions} positions: shorten either"
            )
        table = self._rope
        if table is None or table.shape[1] < rows or table.device != self.device:
            known = 0 if table is None else table.shape[1]
            table = rope_table(self.spec, min(self.spec.max_positions, max(rows, 2 * known)), self.device, self.dtype)
            self._rope = table
        return table

    def forward_full(self, ids: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t v"]:
        """Logits of every row from one plain bidirectional pass: unshifted, no cache, differentiable, any number of
        leading axes.
        """
        spec = self.spec
        x = self.embed(ids.to(self.device))
        rope = self.rope(ids.shape[-1])[:, : ids.shape[-1]]
        for layer in self.layers:
            q, k, v = (part.transpose(-3, -2) for part in layer.project(x, rope))
            attended = F.scaled_dot_product_attention(q, k, v, enable_gqa=spec.heads != spec.kv_heads)
            x = layer.finish(x, attended.transpose(-3, -2).flatten(-2))
        return self.read_out(x)

    def forward(
        self,
        tokens: Int[Tensor, " t"],
        compute: Int[Tensor, " q"],
        predict: Int[Tensor, " p"],
        cache: KVCache,
        observer: AttentionObserver | None = None,
    ) -> Float[Tensor, "p v"]:
        """Recompute the rows `compute` of one sequence against its cache; logits for the tokens of `predict`.

        Raises AssertionError where a needed row is neither computed now nor held by the cache.
        """
        return self.forward_packed([StepInput(tokens, compute, predict, cache, observer)])

    def forward_packed(self, steps: Sequence[StepInput]) -> Float[Tensor, "p v"]:
        """One step of several sequences, their predicted rows' logits end to end in the order given."""
        for step in steps:
            step.cache.expect(step.compute)
        ids = torch.cat([step.tokens[step.compute] for step in steps]).to(self.device, non_blocking=True)
        positions = torch.cat([step.compute for step in steps]).to(self.device, non_blocking=True)
        rows = positions.split([step.compute.numel() for step in steps])
        x = self.embed(ids)
        rope = self.rope(max(step.cache.rows for step in steps))[:, positions]
        for index, layer in enumerate(self.layers):
            x = layer.finish(x, self.attend(index, x, rope, steps, rows))
        sources = self.packed_sources(steps)
        return self.read_out(x)[sources] if steps[0].predict_all else self.read_out(x[sources])

    def attend(
        self,
        index: int,
        x: Float[Tensor, "n d"],
        rope: Float[Tensor, "2 n 1 e"],
        steps: Sequence[StepInput],
        rows: Sequence[Int[Tensor, " _"]],
    ) -> Float[Tensor, "n d"]:
        """One layer's attention: every sequence's computed rows (device indices) to all rows of that sequence.

        A function of its own, so that queries, keys and values are gone when the feed-forward needs the room.
        """
        sizes = [own.numel() for own in rows]
        parts = zip(steps, rows, *(part.split(sizes) for part in self.layers[index].project(x, rope)), strict=True)
        attended = [attend_one(index, *part) for part in parts]
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def packed_sources(self, steps: Sequence[StepInput]) -> Int[Tensor, " p"]:
        """Where the predicted rows' sources stand in the packed rows (device indices)."""
        found, offset = [], 0
        for step in steps:
            sources = self.sources(step.predict)
            at = torch.searchsorted(step.compute, sources)
            if not torch.equal(step.compute[at.clamp_max(step.compute.numel() - 1)], sources):
                raise AssertionError("a predicted row is read from a row outside the compute set")
            found.append(at + offset)
            offset += step.compute.numel()
        return torch.cat(found).to(self.device, non_blocking=True)

    def read_out(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """Final norm and head of the given rows alone."""
        return self.head(F.rms_norm(x, (self.spec.hidden,), self.norm, self.spec.norm_eps))


def attend_one(
    index: int,
    step: StepInput,
    rows: Int[Tensor, " q"],
    q: Float[Tensor, "q h e"],
    k: Float[Tensor, "q kv e"],
    v: Float[Tensor, "q kv e"],
) -> Float[Tensor, "q d"]:
    """Write the rows' keys and values, then let the rows attend to every row of their sequence."""
    k_all, v_all = step.cache.write(index, rows, k, v)
    if step.observer is None:
        return attention(q, k_all, v_all)
    attended, weights = observed_attention(q, k_all, v_all)
    step.observer(index, weights)
    return attended
