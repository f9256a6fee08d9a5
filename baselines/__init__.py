"""The methods that EntropyCache is measured against."""

from baselines.full_recompute import FullRecompute

__all__ = ["FullRecompute"]
