"""Calls timed in turn, so that what drifts on the machine drifts for all of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

Call = Callable[[], object]


def seconds(call: Call, device: torch.device) -> float:
    """Seconds of one call; on CUDA until the device is done."""
    with torch.inference_mode():
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        return time.perf_counter() - start


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turn(
    calls: Mapping[str, Call], budget: float, device: torch.device, least: int = 3, most: int = 50
) -> dict[str, list[float]]:
    """Seconds of each call, called in turn until `budget` seconds are spent (`least` to `most` rounds), after a round
    that does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    with torch.inference_mode():
        for call in calls.values():
            call()
        began = time.perf_counter()
        for done in range(most):
            if done >= least and time.perf_counter() - began > budget:
                break
            for name, call in calls.items():
                times[name].append(seconds(call, device))
    return times


def ratio(ours: list[float], bare: list[float]) -> float:
    """Median of the ratios of neighbouring times."""
    return median(a / b for a, b in zip(ours, bare, strict=True))
