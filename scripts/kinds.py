"""Settings from the command line are held against what conf/ has in their place, before anything is done with them."""

from __future__ import annotations

from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

KINDS: dict[str, Any] = {
    "true or false": bool,
    "a number": (int, float),
    "text": str,
    "a list": list,
    "a mapping": dict,
}


def check_kinds(config_name: str, cfg: DictConfig) -> None:
    """Raises ValueError for a setting given on the command line that is of another kind than what conf/ has there.

    Nothing in place of a number is let through, and so is anything in place of nothing: what they mean, the key says.
    """
    hydra_config = HydraConfig.get()
    groups, given = hydra_config.runtime.choices, hydra_config.overrides.task
    chosen = [o for o in given if o.startswith(("+", "~")) or o.partition("=")[0].partition("@")[0] in groups]
    if len(chosen) < len(given):
        _check_kinds(OmegaConf.to_container(cfg), OmegaConf.to_container(hydra.compose(config_name, chosen)))


def _check_kinds(given: Any, usual: Any, name: str = "") -> None:
    open_ended = isinstance(usual, str) and (usual == "???" or "${" in usual)
    if usual is None or open_ended or (isinstance(given, str) and "${" in given):
        return
    of_usual, of_given = (next((kind for kind, t in KINDS.items() if isinstance(v, t)), None) for v in (usual, given))
    counts = (of_usual, of_given) == ("true or false", "a number")  # `trace` is a switch, or how many samples
    if of_usual != of_given and not counts and not (given is None and of_usual == "a number"):
        raise ValueError(f"{name}={given} must be {of_usual}, as {usual} is")
    if isinstance(usual, dict):
        for key in usual.keys() & given.keys():
            _check_kinds(given[key], usual[key], f"{name}.{key}" if name else str(key))
