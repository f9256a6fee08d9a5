"""Rotary positions and attention of some rows of one sequence, fused or with its weights written out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from entropycache.types import ModelSpec

WEIGHTS_BYTES = 8 * 2**20  # of attention weights written out at a time, where an observer asks for them


def rope_table(spec: ModelSpec, rows: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "2 n 1 e"]:
    """cos and sin of position x theta^(-2i/e) for both halves (rotate-half convention of both families), the sines of
    the first half negated: what a row's first half is given of its second one.
    """
    exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * spec.rope_theta**-exponent
    cos, sin = torch.cat([angles.cos()] * 2, dim=-1), torch.cat([-angles.sin(), angles.sin()], dim=-1)
    return torch.stack([cos, sin])[:, :, None].to(device, torch.promote_types(dtype, torch.float32))


def rotate_(x: Float[Tensor, "*b q h e"], rope: Float[Tensor, "2 q 1 e"]) -> Float[Tensor, "*b q h e"]:
    """Rotary embedding in place; in float32 or wider whatever the model's dtype (LLaDA's `rope_full_precision`)."""
    cos, sin = rope
    wide = x.to(rope.dtype)
    left, right = wide.chunk(2, dim=-1)
    swapped = torch.cat([right, left], dim=-1)
    return x.copy_(wide.mul_(cos).addcmul_(swapped, sin))


def attention(
    q: Float[Tensor, "q h e"], k: Float[Tensor, "t kv e"], v: Float[Tensor, "t kv e"]
) -> Float[Tensor, "q d"]:
    """Fused attention of the given rows over all rows of one sequence.

    Without a mask, the query heads that share a key/value head are just more queries to it: they are laid out along the
    query axis, and no key or value is repeated.
    """
    grouped = group_queries(q, k.shape[1])
    attended = F.scaled_dot_product_attention(grouped[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])[0]
    return ungroup(attended, q.shape[0])


def attention_weights(q: Float[Tensor, "q h e"], k: Float[Tensor, "t kv e"]) -> Float[Tensor, "h q t"]:
    """The softmax weights that `attention` never writes out; in float32 or wider."""
    scores = group_queries(q, k.shape[1]) @ k.permute(1, 2, 0)
    weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).mul_(1 / math.sqrt(q.shape[-1]))
    # In place: on a CPU a new tensor of this size costs its page faults, twice the time of the softmax itself.
    torch.softmax(weights, dim=-1, out=weights)
    return weights.unflatten(1, (-1, q.shape[0])).flatten(0, 1)


def observed_attention(
    q: Float[Tensor, "q h e"], k: Float[Tensor, "t kv e"], v: Float[Tensor, "t kv e"]
) -> tuple[Float[Tensor, "q d"], Float[Tensor, "q t"]]:
    """Attention, and its weights averaged over heads. The rows come some at a time: the weights of all rows and heads
    together would be the largest thing in memory.
    """
    attended = torch.empty_like(q).flatten(1)
    mean = q.new_empty((q.shape[0], k.shape[0]), dtype=torch.promote_types(q.dtype, torch.float32))
    some = max(1, WEIGHTS_BYTES // (mean.itemsize * q.shape[1] * k.shape[0]))
    for q_some, attended_some, mean_some in zip(q.split(some), attended.split(some), mean.split(some), strict=True):
        weights = attention_weights(q_some, k)
        attended_some.copy_(weigh(weights, v))
        torch.sum(weights, dim=0, out=mean_some)
    return attended, mean.div_(q.shape[1])


def weigh(weights: Float[Tensor, "h q t"], v: Float[Tensor, "t kv e"]) -> Float[Tensor, "q d"]:
    """The second half of unfused attention: weighted sums of the values."""
    grouped = weights.unflatten(0, (v.shape[1], -1)).flatten(1, 2)
    return ungroup(grouped.to(v.dtype) @ v.transpose(0, 1), weights.shape[1])


def group_queries(q: Float[Tensor, "q h e"], kv_heads: int) -> Float[Tensor, "kv gq e"]:
    """[q, h, e] -> [kv, (h/kv)·q, e]: a key/value head's query heads, one after another."""
    if q.shape[1] == kv_heads:
        return q.transpose(0, 1)
    return q.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)


def ungroup(attended: Float[Tensor, "kv gq e"], rows: int) -> Float[Tensor, "q d"]:
    """[kv, (h/kv)·q, e] -> [q, h·e]."""
    return attended.unflatten(1, (-1, rows)).permute(2, 0, 1, 3).flatten(1)
