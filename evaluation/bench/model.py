"""A random model of a given shape, and the bare arithmetic of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from entropycache.models.transformer import Transformer
from entropycache.types import ModelSpec


def random_model(shape: Mapping[str, Any], device: torch.device, seed: int = 0) -> Transformer:
    """Random weights, a function of the seed, made in place on the device: no more memory than the model takes."""
    fields = {key: value for key, value in shape.items() if key not in ("name", "dtype")}
    with torch.device("meta"):
        model = Transformer(ModelSpec(**{**fields, "stop_ids": tuple(fields["stop_ids"])}))
    model.to(getattr(torch, shape["dtype"])).requires_grad_(False).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.normal_(0, 1 if name == "embed.weight" else parameter.shape[1] ** -0.5, generator=generator)
        else:
            parameter.fill_(0 if name.endswith("bias") else 1)
    return model.eval()


def bare_arithmetic(
    model: Transformer, computed: Sequence[int], rows: int, predicted: int
) -> Callable[[], torch.Tensor]:
    """A call that makes the matrix products, the fused attention and the head rows of one step, and nothing else: no
    norm, rotation, activation, residual or cache, on inputs that lie as each operation likes them best.

    Args:
        model: whose weights are used.
        computed: rows computed of each packed sequence.
        rows: rows of a sequence.
        predicted: rows that the head reads, all sequences together.
    """
    spec, packed = model.spec, sum(computed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=model.device, dtype=model.dtype)

    x, between, read = (
        random(packed, spec.hidden),
        random(packed, spec.intermediate),
        random(predicted, spec.hidden),
    )
    # Query heads that share a key/value head are more queries to it, as in `transformer.attention`.
    sequences = [
        (
            random(1, spec.kv_heads, spec.heads // spec.kv_heads * own, spec.head_dim),
            *random(2, 1, spec.kv_heads, rows, spec.head_dim),
        )
        for own in computed
    ]

    def call() -> torch.Tensor:
        for layer in model.layers:
            F.linear(x, layer.qkv.weight, layer.qkv.bias)
            for q, k, v in sequences:
                F.scaled_dot_product_attention(q, k, v)
            F.linear(x, layer.out.weight)
            F.linear(x, layer.gate_up.weight)
            F.linear(between, layer.down.weight)
        return F.linear(read, model.head.weight)

    return call
