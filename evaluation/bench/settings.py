"""What the bench is asked to measure, checked before it measures anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from entropycache.settings import choice, real, several, whole
from entropycache.types import ModelSpec

DTYPES = ("float32", "float64", "bfloat16", "float16")
SIZES = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocab", "max_positions")
OF_METHODS = ("methods", "packing", "growth", "memory")  # parts that run every method


def check(config: Mapping[str, Any], parts: Sequence[str]) -> None:
    """Raises ValueError, naming the key, its value and what would do, for what the bench cannot be run with."""
    if not isinstance(config["parts"], list) or not config["parts"]:
        raise ValueError(f"parts={config['parts']} must be a list of some of {', '.join(parts)}")
    for part in config["parts"]:
        choice("parts", part, parts)
    if config["threads"] is not None:
        whole("threads", config["threads"], 1, "threads")
    whole("seed", config["seed"], 0)
    choice("device", str(config["device"]).partition(":")[0], ("cpu", "cuda"))
    if not isinstance(config["output"], str):
        raise ValueError(f"output={config['output']} must be a folder")
    check_shape(config["shape"])
    if not config["compared"]:
        raise ValueError("compared={} must name a method at least")
    for name, method in config["compared"].items():
        if method["refresh_share"] != "blocks":
            would = "a share from 0 to 1, or blocks"
            real(f"compared.{name}.refresh_share", method["refresh_share"], lambda x: 0 <= x <= 1, would)
    block, steps = (whole(f"schedule.{key}", config["schedule"][key], 1) for key in ("block_length", "steps"))
    if steps > block:
        raise ValueError(f"schedule.steps={steps} must be at most schedule.block_length={block}: a token a step")
    if "steps" in config["parts"] or config["profiler"]:
        check_steps(config["steps"], config["shape"]["max_positions"])
    for part in OF_METHODS:
        if part in config["parts"]:
            check_methods(part, config[part], config["schedule"], config["shape"]["max_positions"])
    if "loading" in config["parts"]:
        gigabytes = config["loading"]["gigabytes"]
        real("loading.gigabytes", gigabytes, lambda x: 0 < x < math.inf, "a size above 0")


def check_shape(shape: Mapping[str, Any]) -> None:
    names = ["name", "dtype", *(field.name for field in fields(ModelSpec))]
    for key in shape:
        choice("shape", key, names)
    choice("shape.dtype", shape["dtype"], DTYPES)
    for key in SIZES:
        whole(f"shape.{key}", shape[key], 1)


def check_steps(sizes: Mapping[str, Any], positions: int) -> None:
    canvas = whole("steps.canvas", sizes["canvas"], 2, "rows")
    whole("steps.predict", sizes["predict"], 1, "rows")
    real("steps.seconds", sizes["seconds"], lambda x: 0 <= x < math.inf, "a time of 0 or more")
    for prompt in wholes("steps.prompts", sizes["prompts"]):
        check_length("steps", prompt, canvas, positions)
        for rows in wholes("steps.rows", sizes["rows"]):
            if rows > prompt + canvas:
                raise ValueError(f"steps.rows: {rows} are more than the {prompt + canvas} of prompt and canvas")


def check_methods(part: str, sizes: Mapping[str, Any], schedule: Mapping[str, int], positions: int) -> None:
    block = schedule["block_length"]
    canvas = whole(f"{part}.canvas", sizes["canvas"], 1, "rows")
    if canvas % block:
        raise ValueError(f"{part}.canvas={canvas} must be a multiple of schedule.block_length={block}")
    wholes(f"{part}.batches", sizes["batches"])
    for prompt in wholes(f"{part}.prompts", sizes["prompts"]):
        check_length(part, prompt, canvas, positions)
    if sizes["steps"] is not None:
        most = canvas // block * schedule["steps"] - 1
        if whole(f"{part}.steps", sizes["steps"], 1) > most:
            raise ValueError(f"{part}.steps={sizes['steps']} are more than the {most} after the first; {most} would do")


def check_length(part: str, prompt: int, canvas: int, positions: int) -> None:
    if prompt + canvas > positions:
        raise ValueError(
            f"{part}.prompts: {prompt} and a canvas of {canvas} exceed shape.max_positions={positions}; "
            f"{positions - canvas} would do"
        )


def wholes(name: str, values: object) -> list[int]:
    """A list of whole numbers above 0, at least one."""
    return several(name, values, partial(whole, least=1))
