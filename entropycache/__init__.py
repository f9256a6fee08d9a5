"""Reproducible measurement of KV caching for diffusion language models: the engine and the EntropyCache policy."""

from entropycache.decoding import Decoding
from entropycache.engine import generate, stream
from entropycache.models.checkpoint import load_model
from entropycache.policy import CachePolicy, EntropyCache
from entropycache.types import Commit, Generation, ModelSpec, Plan, SequenceState, StepRecord

__all__ = [
    "CachePolicy",
    "Commit",
    "Decoding",
    "EntropyCache",
    "Generation",
    "ModelSpec",
    "Plan",
    "SequenceState",
    "StepRecord",
    "generate",
    "load_model",
    "stream",
]
