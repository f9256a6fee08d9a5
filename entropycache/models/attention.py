"""Rotary positions and attention of some rows of one sequence, fused or with its weights written out."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor

from entropycache.types import ModelSpec

WEIGHTS_BYTES = 8 * 2**20  # of attention weights written out at a time, where an observer asks for them


def rope_table(spec: ModelSpec, rows: int, device: torch.device, dtype: torch.dtype) -> Complex[Tensor, "n 1 pairs"]:
    """e^(i * position * theta^(-2j/head_dim)) for each position and pair j: what a pair is turned by."""
    exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
    angles = torch.arange(rows, dtype=torch.float64)[:, None, None] * spec.rope_theta**-exponent
    turns = torch.polar(torch.ones_like(angles), angles)
    return turns.to(device, torch.promote_types(dtype, torch.float32).to_complex())


def rotate_(x: Float[Tensor, "*b q h e"], rope: Complex[Tensor, "q 1 pairs"]) -> Float[Tensor, "*b q h e"]:
    """Rotary embedding in place, in float32 or wider whatever the model's dtype (LLaDA's `rope_full_precision`).

    The two numbers that turn together lie beside each other, as one complex number (`in_pairs`): one pass over `x`.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    torch.view_as_complex(wide.view(*wide.shape[:-1], -1, 2)).mul_(rope)
    return x if wide is x else x.copy_(wide)


def in_pairs(x: Float[Tensor, "n *d"], head_dim: int) -> Float[Tensor, "heads 2 half *d"]:
    """View of rows laid out in pairs (0, 1), (2, 3), ... of each head, in the order of the families' checkpoints: the
    first of each pair, then the second of each (`rotate_half` of both modelling files).
    """
    return x.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2)


def rms_norm(x: Float[Tensor, "*n d"], weight: Float[Tensor, " d"], eps: float) -> Float[Tensor, "*n d"]:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    On a CPU torch's own has no kernel: it writes the squares out, and takes twice as many operations, each of which
    costs more than its arithmetic where the matrix product before it has emptied the caches.
    """
    if not x.is_cpu or x.itemsize < 4:
        return F.rms_norm(x, weight.shape, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(constant(eps, x.dtype), norm, norm, value=1 / x.shape[-1])
    return (x * mean_square.rsqrt()).mul_(weight)


@functools.cache
def constant(value: float, dtype: torch.dtype) -> Float[Tensor, ""]:
    """A number as a tensor on the CPU."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype)


def attention(
    q: Float[Tensor, "q h e"], k: Float[Tensor, "kv t e"], v: Float[Tensor, "kv t e"]
) -> Float[Tensor, "q d"]:
    """Fused attention of the given rows over all rows of one sequence.

    Without a mask, the query heads that share a key/value head are just more queries to it: they are laid out along the
    query axis, and no key or value is repeated.
    """
    grouped = group_queries(q, k.shape[0])
    attended = F.scaled_dot_product_attention(grouped[None], k[None], v[None])[0]
    return ungroup(attended, q.shape[0])


def attention_weights(q: Float[Tensor, "q h e"], k: Float[Tensor, "kv t e"]) -> Float[Tensor, "h q t"]:
    """The softmax weights that `attention` never writes out; in float32 or wider."""
    scores = group_queries(q, k.shape[0]) @ k.transpose(1, 2)
    weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).mul_(1 / math.sqrt(q.shape[-1]))
    # In place: on a CPU a new tensor of this size costs its page faults, twice the time of the softmax itself.
    torch.softmax(weights, dim=-1, out=weights)
    return weights.unflatten(1, (-1, q.shape[0])).flatten(0, 1)


def observed_attention(
    q: Float[Tensor, "q h e"], k: Float[Tensor, "kv t e"], v: Float[Tensor, "kv t e"]
) -> tuple[Float[Tensor, "q d"], Float[Tensor, "q t"]]:
    """Attention, and its weights averaged over heads. The rows come some at a time: the weights of all rows and heads
    together would be the largest thing in memory.
    """
    attended = torch.empty_like(q).flatten(1)
    mean = q.new_empty((q.shape[0], k.shape[1]), dtype=torch.promote_types(q.dtype, torch.float32))
    some = max(1, WEIGHTS_BYTES // (mean.itemsize * q.shape[1] * k.shape[1]))
    for q_some, attended_some, mean_some in zip(q.split(some), attended.split(some), mean.split(some), strict=True):
        weights = attention_weights(q_some, k)
        attended_some.copy_(weigh(weights, v))
        torch.sum(weights, dim=0, out=mean_some)
    return attended, mean.div_(q.shape[1])


def weigh(weights: Float[Tensor, "h q t"], v: Float[Tensor, "kv t e"]) -> Float[Tensor, "q d"]:
    """The second half of unfused attention: weighted sums of the values."""
    grouped = weights.unflatten(0, (v.shape[0], -1)).flatten(1, 2)
    return ungroup(grouped.to(v.dtype) @ v, weights.shape[1])


def group_queries(q: Float[Tensor, "q h e"], kv_heads: int) -> Float[Tensor, "kv gq e"]:
    """[q, h, e] -> [kv, (h/kv)·q, e]: a key/value head's query heads, one after another."""
    if q.shape[1] == kv_heads:
        return q.transpose(0, 1)
    return q.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)


def ungroup(attended: Float[Tensor, "kv gq e"], rows: int) -> Float[Tensor, "q d"]:
    """[kv, (h/kv)·q, e] -> [q, h·e]."""
    if attended.shape[1] == rows:
        return attended.transpose(0, 1).flatten(1)
    return attended.unflatten(1, (-1, rows)).permute(2, 0, 1, 3).flatten(1)
