"""From lm-eval's `--model_args` to an `Answerer`: the methods and decodings of `conf/` by name, where no `conf/` is.

A test holds every default here to the YAML file of the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from baselines import D2Cache, ElasticCache, FastDLLM, FullRecompute
from entropycache import CachePolicy, Decoding, EntropyCache, load_model
from entropycache.models.checkpoint import resolve
from entropycache.models.tokenizer import Tokenizer
from entropycache.settings import choice
from evaluation.generate import Answerer

METHODS: dict[str, tuple[Callable[..., CachePolicy], dict[str, Any]]] = {
    "full_recompute": (FullRecompute, {}),
    "entropycache": (EntropyCache, {"tau": 0.5, "k": 16}),
    "fast_dllm_prefix": (FastDLLM, {"variant": "prefix"}),
    "fast_dllm_dual": (FastDLLM, {"variant": "dual"}),
    "d2cache": (D2Cache, {}),
    "elastic_cache": (ElasticCache, {}),
}
BLOCKS: dict[str, Any] = {"window": "blockwise", "block_length": 32}
DECODINGS: dict[str, dict[str, Any]] = {
    "one_token": BLOCKS,
    "threshold": BLOCKS | {"rule": "threshold", "threshold": 0.9},
    "factor": BLOCKS | {"rule": "factor", "factor": 1.0},
    "sliding_threshold": {"window": "sliding", "window_length": 16, "rule": "threshold", "threshold": 0.9},
    "certainty_prior": {"window": "whole", "certainty_sigma": 10.0},
}
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
BOS_FAMILIES = ("llada",)  # families whose prompts begin with BOS
GEN_LENGTH = 256  # canvas where neither the settings nor the request names one


def make_answerer(
    pretrained: str,
    *,
    method: str = "entropycache",
    decoding: str = "threshold",
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    chat: bool = True,
    bos: bool | None = None,
    seed: int = 0,
    batch_size: int | str = 1,
    **settings: Any,
) -> Answerer:
    """Model, method and decoding by name; `settings` are the method's (tau, k, ...) and the decoding's (threshold,
    block_length, ...). `bos` None is the family's habit.

    Raises ValueError, naming the value and what would do; CheckpointError as `load_model`.
    """
    build, own = METHODS[choice("method", method, METHODS)]
    preset = DECODINGS[choice("decoding", decoding, DECODINGS)]
    choice("dtype", dtype, DTYPES)
    if not str(batch_size).isdigit() or not int(batch_size):
        raise ValueError(f"batch_size {batch_size!r} must be a whole number of sequences, 1 or above")
    of_method = set(inspect.signature(build).parameters)
    of_decoding = {field.name for field in fields(Decoding)}
    for name in settings:
        choice(f"setting of method {method}", name, sorted(of_method | of_decoding))
    policy = build(**own | {name: value for name, value in settings.items() if name in of_method})
    chosen = {name: value for name, value in settings.items() if name in of_decoding}
    canvas = Decoding(**{"gen_length": GEN_LENGTH} | preset | chosen)
    directory = resolve(pretrained, revision)
    model = load_model(directory, device=device, dtype=DTYPES[dtype])
    return Answerer(
        model,
        Tokenizer(directory),
        policy,
        canvas,
        chat=chat,
        bos=model.spec.family in BOS_FAMILIES if bos is None else bos,
        seed=seed,
        batch_size=int(batch_size),
    )
