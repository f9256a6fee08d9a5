"""Small random models for property tests: both families, sizes that cannot be mistaken for one another."""

from __future__ import annotations

import torch

from entropycache.models.transformer import Transformer
from entropycache.types import ModelSpec

FAMILIES = ("llada", "dream")


def random_spec(family: str, *, layers: int = 3, head_dim: int = 10, vocab: int = 53) -> ModelSpec:
    """The family's traits (grouped heads, biases, shift, two stop tokens) at small, mutually distinct sizes."""
    dream = family == "dream"
    heads, kv_heads = (4, 2) if dream else (3, 3)
    return ModelSpec(
        family=family,
        layers=layers,
        hidden=heads * head_dim,
        heads=heads,
        kv_heads=kv_heads,
        intermediate=37,
        vocab=vocab,
        rope_theta=1e4,
        norm_eps=1e-6,
        qkv_bias=dream,
        tied=False,
        max_positions=512,
        mask_id=vocab - 1,
        eos_id=vocab - 2,
        stop_ids=(vocab - 2,) if dream else (vocab - 2, vocab - 3),
        bos_id=vocab - 4,
        shift=int(dream),
    )


def random_model(
    family: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    *,
    layers: int = 3,
    head_dim: int = 10,
    vocab: int = 53,
    gain: float = 1.5,
) -> Transformer:
    """A model whose weights are a function of the seed alone, the same in every dtype up to rounding.

    `gain` above 1 makes attention and confidences uneven, so that selections and thresholds have something to decide.
    """
    spec = random_spec(family, layers=layers, head_dim=head_dim, vocab=vocab)
    return randomise(Transformer(spec), seed, gain).to(dtype)


def randomise(model: Transformer, seed: int, gain: float = 1.5) -> Transformer:
    """The model in float64 with random weights, a function of the seed alone."""
    model.double().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name == "embed.weight":
            parameter.copy_(noise)
        elif parameter.ndim == 2:
            scale = 2 * gain if name == "head.weight" else gain  # confidences from a tenth to near one
            parameter.copy_(noise * scale / parameter.shape[1] ** 0.5)
        elif name.endswith("bias"):
            parameter.copy_(noise * 0.5)
        else:
            parameter.copy_(1 + noise * 0.2)
    return model.eval()


def random_prompt(model: Transformer, length: int, seed: int = 0) -> list[int]:
    """Token ids without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.spec.vocab - 4, (length,), generator=generator).tolist()
