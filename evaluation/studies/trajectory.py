"""Decoding under full recompute, pass by pass, with the keys and values of every pass: what caches are held against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropycache.decoding import Decoder, Decoding
from entropycache.engine import start_state, with_entropy
from entropycache.kv_cache import KVCache
from entropycache.models.transformer import Transformer
from entropycache.settings import whole
from entropycache.types import Commit, SequenceState
from evaluation.benchmarks import Request
from evaluation.generate import Answerer


@dataclass(frozen=True)
class Subject:
    """What a study is made of: a model that answers a benchmark's questions with a decoding.

    `config` and `manifest` are what a run of it would have on record.
    """

    name: str
    answerer: Answerer
    requests: Sequence[Request]
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]

    def prompts(self, count: int) -> list[list[int]]:
        """Ids of the first `count` prompts. Raises ValueError where there are fewer."""
        whole("study.prompts", count, 1, "prompts")
        if count > len(self.requests):
            raise ValueError(f"study.prompts={count}, but {self.name} has {len(self.requests)} questions to ask")
        return [self.answerer.prompt_ids(request.prompt_text) for request in self.requests[:count]]


@dataclass(frozen=True)
class Pass:
    """One full pass over the tokens of `state`, and what was committed from it."""

    state: SequenceState
    predict: Int[Tensor, " p"]
    logits: Float[Tensor, "p v"]
    cache: KVCache
    commit: Commit


def passes(model: Transformer, prompt: Sequence[int], decoding: Decoding, seed: int = 0) -> Iterator[Pass]:
    """The passes of a generation under full recompute, each with a cache of its own; the commits carry entropies."""
    state, decoder = start_state(prompt, decoding, model.spec), Decoder(decoding, model.spec, seed)
    with torch.inference_mode():
        while (predict := decoder.candidates(state)).numel():
            cache = model.new_cache(state.length)
            logits = model.forward(state.tokens, state.all_rows, predict, cache)
            reading = decoder.read(logits, predict, state)
            commit = with_entropy(decoder.decide(reading, predict, state), reading.log_probability, predict)
            yield Pass(state, predict, logits, cache, commit)
            state = state.apply(commit)


def moved(before: Float[Tensor, "l h t e"], after: Float[Tensor, "l h t e"]) -> Float[Tensor, "2 l t"]:
    """How far each row of each layer moved: 1 - cosine similarity, and L2 distance relative to before; in float64.

    A row's heads are laid end to end. Rotary positions turn a key the same way in both passes, so they change neither.
    """
    a, b = (side.transpose(1, 2).flatten(-2).double() for side in (before, after))
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=-1)
    return torch.stack([(1 - cosine).clamp_min(0), (b - a).norm(dim=-1) / a.norm(dim=-1)])
