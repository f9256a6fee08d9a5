"""What a plan will take, before anything is downloaded or run: operations by formula, over a rate that is measured in a
moment or assumed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from entropycache import Decoding
from entropycache.flops import step_flops
from entropycache.models.checkpoint import local_folder, read_config
from entropycache.models.tokenizer import special_tokens
from entropycache.models.transformer import Transformer
from entropycache.types import ModelSpec

ROWS = 512  # of the calibration's matrix product


@dataclass(frozen=True)
class Assumed:
    """What cannot be known beforehand (conf/estimate).

    `tokens_per_pass` are committed by a decoding that commits several, `rows_computed` is the share of the rows that a
    method with a cache computes in a pass after the first.
    """

    tokens_per_pass: float
    rows_computed: float


def model_spec(model: Mapping[str, Any], shapes: Mapping[str, Mapping[str, Any]]) -> ModelSpec | None:
    """The shape of a model: from its files where they are here, else the known one of that hub id, else None.

    Nothing is downloaded.
    """
    if (folder := local_folder(model["path"])) is not None:
        family, config = read_config(folder)
        return family.spec(config, special_tokens(folder))
    if (shape := shapes.get(model["path"])) is None:
        return None
    fields = {key: value for key, value in shape.items() if key not in ("name", "dtype")}
    return ModelSpec(**{**fields, "stop_ids": tuple(fields["stop_ids"])})


def parameters(spec: ModelSpec) -> int:
    """How many numbers the model's weights are."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(spec).parameters())


def answer_flops(spec: ModelSpec, prompt: int, decoding: Decoding, cached: bool, assumed: Assumed) -> float:
    """Operations of one answer behind a prompt of so many tokens. Of full recompute with one token a step nothing is
    assumed but that every pass reads a whole window.
    """
    rows, canvas = prompt + decoding.gen_length, decoding.gen_length
    read = decoding.window_length if decoding.window == "sliding" else decoding.block
    passes = canvas if decoding.one_token_a_step else max(1.0, canvas / assumed.tokens_per_pass)
    written = rows * (assumed.rows_computed if cached else 1.0)
    first = step_flops(spec, spec.layers * rows, rows, read or canvas)
    return first + (passes - 1) * step_flops(spec, round(spec.layers * written), rows, read or canvas)


def flops_per_second(spec: ModelSpec, dtype: torch.dtype, device: torch.device, seconds: float) -> float:
    """Rate of the model's largest matrix product on a device, measured for about so many seconds."""
    rows = torch.randn(ROWS, spec.hidden, device=device, dtype=dtype)
    weight = torch.randn(2 * spec.intermediate, spec.hidden, device=device, dtype=dtype)

    def timed(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            torch.nn.functional.linear(rows, weight)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    timed(1)  # the first call sets up
    calls = max(1, round(seconds / max(timed(1), 1e-6)))
    return 2 * calls * ROWS * weight.numel() / timed(calls)
