"""The methods that EntropyCache is measured against."""

from baselines.d2cache import D2Cache
from baselines.elastic_cache import ElasticCache
from baselines.fast_dllm import FastDLLM
from baselines.full_recompute import FullRecompute

__all__ = ["D2Cache", "ElasticCache", "FastDLLM", "FullRecompute"]
