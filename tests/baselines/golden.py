"""The recorded runs of the public references (`tests/goldens/README.md`), and the policy and decoding each names."""

from __future__ import annotations

import functools
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from baselines import D2Cache, FastDLLM, FullRecompute
from baselines.fast_dllm import Variant
from entropycache import CachePolicy, Decoding, Generation, generate, load_model
from entropycache.models.transformer import Transformer

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
GEN_LENGTH = 64
CONFIDENCE = {"maskgit_plus": "probability", "entropy": "negative_entropy", "topk_margin": "margin"}


@dataclass(frozen=True)
class Golden:
    """One run of a reference. `queries[i]`, where recorded, are the rows that its i-th forward pass computed."""

    model: str
    reference: str
    setting: str
    variant: str
    prompt: str
    tokens: list[int]
    nfe: int
    steps: list[list[int]]
    robust: bool
    queries: list[str] | None

    @property
    def key(self) -> str:
        return "|".join((self.model, self.reference, self.setting, self.variant, self.prompt))

    @property
    def idle(self) -> list[bool]:
        """Per forward pass, whether nothing was decoded from it because its block was finished before it.

        The do-while loop of Fast-dLLM's LLaDA code makes such passes; our engine does not. A Dream schedule, too, has
        passes that decode nothing, but those belong to it."""
        counted = self.reference == "Fast-dLLM" and self.model == "llada-tiny"
        return [counted and not step for step in self.steps]


@functools.cache
def runs() -> tuple[Golden, ...]:
    """Every recorded run of the groups that our methods cover."""
    with gzip.open(GOLDENS / "generate.json.gz", "rt") as file:
        return tuple(Golden(**run) for run in json.load(file))


@functools.cache
def model(name: str, dtype: torch.dtype = torch.float64) -> Transformer:
    return load_model(GOLDENS / "checkpoints" / name, dtype=dtype)


@functools.cache
def prompt(name: str, prompt_id: str) -> list[int]:
    prompts = json.loads((GOLDENS / "prompts.json").read_text())
    return next(entry["ids"] for entry in prompts[name] if entry["id"] == prompt_id)


def interpret(golden: Golden) -> tuple[CachePolicy, Decoding]:
    """What a setting's name says: `bN` block length, `sN` total steps, `tX` threshold, `sigma10` certainty prior."""
    kind, *parts = golden.setting.split("/")
    decoding: dict[str, Any] = {"gen_length": GEN_LENGTH, "window": "whole"}
    d2: dict[str, Any] = {}
    for part in parts:
        if part in CONFIDENCE:
            decoding |= {"confidence": CONFIDENCE[part], "rule": "timestep"}
        elif part == "sigma10":
            decoding["certainty_sigma"] = 10.0
        elif part[0] == "k":
            k, w = part.split("-")
            d2 = {"current_k": int(k[1:]), "inflate_w": int(w[1:])}
        elif part[0] == "b":
            decoding |= {"window": "blockwise", "block_length": int(part[1:])}
        elif part[0] == "s":
            decoding["steps"] = int(part[1:])
        elif part[0] == "t":
            decoding |= {"rule": "threshold", "threshold": float(part[1:])}
    return policy(golden, kind, d2), Decoding(**decoding)


def policy(golden: Golden, kind: str, d2: dict[str, Any]) -> CachePolicy:
    if kind == "d2":
        return D2Cache(**d2, as_published=golden.variant == "as_is")
    if kind not in ("prefix", "dual"):
        return FullRecompute()
    variant: Variant = "prefix" if kind == "prefix" else "dual"
    if golden.reference == "d2Cache":
        return FastDLLM(variant, rows="sources")
    return FastDLLM(variant, first_step="one" if golden.model == "dream-tiny" else "rule")


def replay(golden: Golden, dtype: torch.dtype = torch.float64) -> Generation:
    chosen, decoding = interpret(golden)
    return generate(model(golden.model, dtype), prompt(golden.model, golden.prompt), chosen, decoding, trace=True)


def differences(golden: Golden, out: Generation, queries: bool = True) -> list[str]:
    """What of a replay is not as recorded: tokens, the order of decoding, the number of passes, the rows computed."""
    idle = golden.idle
    steps = [step for step, skip in zip(golden.steps, idle, strict=True) if not skip]
    ours = [[row - out.prompt_length for row in step.committed] for step in out.steps]
    found = []
    if out.tokens.tolist() != golden.tokens:
        found.append("tokens")
    if out.nfe != golden.nfe - sum(idle):
        found.append(f"nfe {out.nfe} instead of {golden.nfe} - {sum(idle)}")
    if ours != steps:
        first = next(
            (i for i, (a, b) in enumerate(zip(ours, steps, strict=False)) if a != b), min(len(ours), len(steps))
        )
        found.append(f"order from pass {first}")
    if queries and golden.queries is not None:
        wanted = [rows(q, out) for q, skip in zip(golden.queries, idle, strict=True) if not skip]
        computed = [step.computed for step in out.steps]
        if computed != wanted:
            first = next(
                (i for i, (a, b) in enumerate(zip(computed, wanted, strict=False)) if a != b),
                min(len(computed), len(wanted)),
            )
            found.append(f"rows computed in pass {first}")
    return found


def rows(ranges: str, out: Generation) -> list[int]:
    """ "0-12,15" -> [0, 1, ..., 12, 15]; "all" is every row."""
    if ranges == "all":
        return list(range(out.prompt_length + GEN_LENGTH))
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
