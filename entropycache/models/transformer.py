"""The bidirectional transformer of both families: RMSNorm, rotary positions, grouped heads, optional q/k/v bias,
SwiGLU.

A family contributes numbers (`ModelSpec`) and names (`llada.py`, `dream.py`), never a second model. Which rows are
computed is an argument; the model knows no policy. The rows of several sequences travel end to end through the norms,
projections, feed-forward and head, and part only in attention, where each sequence looks at its own cache: there is no
padding row anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

from entropycache.kv_cache import KVCache
from entropycache.models.attention import attention, observed_attention, rms_norm, rope_table, rotate_
from entropycache.types import ModelSpec

AttentionObserver = Callable[[int, Float[Tensor, "q t"]], object]

ROWS_AT_ONCE = 1536  # through the feed-forward, whose temporaries are the widest


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
    """One block. Its pieces are public, so that a loop other than `Transformer.forward_packed` can be built from them.
    Each may be given `scratch` (`Transformer.scratch`) to write its widest product into.

    Rows of `qkv` that make queries and keys stand in pairs (`attention.in_pairs`).
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
        self, x: Float[Tensor, "*b q d"], rope: Complex[Tensor, "q 1 pairs"], scratch: Tensor | None = None
    ) -> tuple[Float[Tensor, "*b q h e"], Float[Tensor, "*b q 2 kv e"]]:
        """Queries, and keys and values, of the given rows; queries and keys rotated."""
        spec = self.spec
        qkv = product(rms_norm(x, self.attention_norm, spec.norm_eps), self.qkv, scratch)
        qkv = qkv.view(*x.shape[:-1], spec.heads + 2 * spec.kv_heads, spec.head_dim)
        rotate_(qkv[..., : spec.heads + spec.kv_heads, :], rope)
        return qkv[..., : spec.heads, :], qkv[..., spec.heads :, :].view(*x.shape[:-1], 2, spec.kv_heads, spec.head_dim)

    def finish(
        self, x: Float[Tensor, "*b q d"], attended: Float[Tensor, "*b q d"], scratch: Tensor | None = None
    ) -> Float[Tensor, "*b q d"]:
        """Residual of the attention's output projection, then of the feed-forward. Where no gradient is asked for, `x`
        is written over: a product that is added as it is made takes neither a tensor nor a pass of its own.
        """
        if torch.is_grad_enabled():
            x = self.out(attended).add_(x)
            return self.down(self.feed_forward(x)).add_(x)
        rows = x.view(-1, self.spec.hidden)
        rows.addmm_(attended.flatten(0, -2), self.out.weight.t())
        for part in rows.chunk(math.ceil(len(rows) / ROWS_AT_ONCE)):
            part.addmm_(self.feed_forward(part, scratch), self.down.weight.t())
        return x

    def feed_forward(self, x: Float[Tensor, "*b q d"], scratch: Tensor | None = None) -> Float[Tensor, "*b q f"]:
        """The feed-forward up to its last product."""
        gate_up = product(rms_norm(x, self.mlp_norm, self.spec.norm_eps), self.gate_up, scratch)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate, inplace=not torch.is_grad_enabled()).mul_(up)


def scratch_numbers(spec: ModelSpec, rows: int) -> int:
    """How many numbers the widest product of a step of so many rows has."""
    return max(rows * spec.qkv_rows, min(rows, ROWS_AT_ONCE) * 2 * spec.intermediate)


def product(x: Float[Tensor, "*b q d"], linear: nn.Linear, scratch: Tensor | None) -> Float[Tensor, "*b q f"]:
    """What a linear layer makes of the given rows, in the scratch memory where there is any."""
    if scratch is None:
        return linear(x)
    out = scratch.as_strided((x.shape[0], linear.out_features), (linear.out_features, 1))
    if linear.bias is None:
        return torch.mm(x, linear.weight.t(), out=out)
    return torch.addmm(linear.bias, x, linear.weight.t(), out=out)


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
    kept in float32's complex numbers, or float64's for a float64 model.
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
        self._rope: Complex[Tensor, "n 1 pairs"] | None = None
        self._scratch: list[Tensor] = []

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

    def rope(self, rows: int) -> Complex[Tensor, "n 1 pairs"]:
        """Turns of the first `rows` positions (at least), [n, 1, head_dim / 2], made once and kept.

        Raises ValueError where the sequence is longer than the positions that the model was made for.
        """
        if rows > self.spec.max_positions:
            raise ValueError(
                f"{rows} rows (prompt + canvas) exceed the model's {self.spec.max_positions} positions: shorten either"
            )
        table = self._rope
        if table is None or table.shape[0] < rows or table.device != self.device:
            known = 0 if table is None else table.shape[0]
            table = rope_table(self.spec, min(self.spec.max_positions, max(rows, 2 * known)), self.device, self.dtype)
            self._rope = table
        return table

    @contextmanager
    def scratch(self, rows: int) -> Iterator[Tensor | None]:
        """Memory for the widest products of a step of so many rows, kept from one step to the next; None where a
        gradient is asked for, or the device's own allocator keeps what is freed.

        On a CPU new tensors of that size are paid for in page faults, thousands in a refresh. It is out of the model's
        hands while it is in use: two threads never share it.
        """
        if torch.is_grad_enabled() or self.device.type != "cpu":
            yield None
            return
        size = scratch_numbers(self.spec, rows)
        held = self._scratch.pop() if self._scratch else None
        if held is None or held.numel() < size or held.dtype != self.dtype:
            with torch.inference_mode(False):  # to be written to outside of it too
                held = torch.empty(size, dtype=self.dtype)
        try:
            yield held
        finally:
            self._scratch.append(held)

    def release_scratch(self) -> None:
        """Give back the memory that is kept between steps."""
        self._scratch.clear()

    def forward_full(self, ids: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t v"]:
        """Logits of every row from one plain bidirectional pass: unshifted, no cache, differentiable, any number of
        leading axes.
        """
        return self.read_out(self.hidden(ids))

    def hidden(self, ids: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t d"]:
        """`forward_full` short of `read_out`, which a loss needs at some rows alone."""
        spec = self.spec
        x = self.embed(ids.to(self.device))
        rope = self.rope(ids.shape[-1])[: ids.shape[-1]]
        for layer in self.layers:
            q, kv = layer.project(x, rope)
            k, v = kv.transpose(-4, -2).unbind(dim=-3)
            attended = F.scaled_dot_product_attention(q.transpose(-3, -2), k, v, enable_gqa=spec.heads != spec.kv_heads)
            x = layer.finish(x, attended.transpose(-3, -2).flatten(-2))
        return x

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
        rope = self.rope(max(step.cache.rows for step in steps))[positions]
        with self.scratch(len(x)) as scratch:
            for index, layer in enumerate(self.layers):
                x = layer.finish(x, self.attend(index, x, rope, steps, rows, scratch), scratch)
        sources = self.packed_sources(steps)
        return self.read_out(x)[sources] if steps[0].predict_all else self.read_out(x[sources])

    def attend(
        self,
        index: int,
        x: Float[Tensor, "n d"],
        rope: Complex[Tensor, "n 1 pairs"],
        steps: Sequence[StepInput],
        rows: Sequence[Int[Tensor, " _"]],
        scratch: Tensor | None,
    ) -> Float[Tensor, "n d"]:
        """One layer's attention: every sequence's computed rows (device indices) to all rows of that sequence.

        A function of its own, so that queries, keys and values are gone when the feed-forward needs the room.
        """
        q, kv = self.layers[index].project(x, rope, scratch)
        if len(steps) == 1:
            return attend_one(index, steps[0], rows[0], q, kv)
        sizes = [own.numel() for own in rows]
        parts = zip(steps, rows, q.split(sizes), kv.split(sizes), strict=True)
        return torch.cat([attend_one(index, *part) for part in parts])

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
        return self.head(rms_norm(x, self.norm, self.spec.norm_eps))


def attend_one(
    index: int,
    step: StepInput,
    rows: Int[Tensor, " q"],
    q: Float[Tensor, "q h e"],
    kv: Float[Tensor, "q 2 kv e"],
) -> Float[Tensor, "q d"]:
    """Write the rows' keys and values, then let the rows attend to every row of their sequence."""
    k_all, v_all = step.cache.write(index, rows, kv)
    if step.observer is None:
        return attention(q, k_all, v_all)
    attended, weights = observed_attention(q, k_all, v_all)
    step.observer(index, weights)
    return attended
