"""Paired speed: several methods on the same prompts in one process, in turn, in an order that changes from prompt to
prompt.

One prompt's times of all rows are one sample of the run store, so that a killed measurement resumes with the next
prompt and every ratio stays paired. Ratios and intervals are made from these times by `statistics.speedup`, never here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from entropycache.models.attention import attention, observed_attention
from entropycache.models.transformer import Transformer
from evaluation.benchmarks import Request
from evaluation.comparison import comparable
from evaluation.files import write_json
from evaluation.generate import Answerer, costs
from evaluation.statistics import generated_tokens
from evaluation.store import Run

# The reference decodes one token a step; what its rule and its window then are is part of what is compared.
REFERENCE_FREE = (
    "method",
    *(f"decoding.{key}" for key in ("name", "rule", "threshold", "factor", "steps", "window", "window_length")),
)


@dataclass(frozen=True)
class SpeedRow:
    """One row of a comparison: a method with a decoding, its label, and its resolved configuration."""

    label: str
    answerer: Answerer
    config: Mapping[str, Any]


def check_rows(rows: Sequence[SpeedRow]) -> None:
    """Refuse a comparison that would compare more than methods.

    Raises ValueError where the first row is not a reference (full recompute, one token a step) and IncomparableError,
    naming the key, where a row differs from it in anything but method, commit rule and window (block lengths differ
    only between kinds of windows).
    """
    reference = rows[0]
    if reference.config["method"]["name"] != "full_recompute" or not reference.answerer.decoding.one_token_a_step:
        raise ValueError(f"rows[0] is {reference.label}: the reference must be full_recompute with one token a step")
    for row in rows[1:]:
        other_window = row.answerer.decoding.window != reference.answerer.decoding.window
        comparable(reference.config, row.config, free=(*REFERENCE_FREE, *["decoding.block_length"] * other_window))


def measure(
    run: Run,
    rows: Sequence[SpeedRow],
    requests: Sequence[Request],
    warmup: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Time every row on each prompt that the run still lacks; `progress` is told each row's label before it runs.

    The first `warmup` generations of each row are not counted; their seconds are kept apart. Rows run alone (no
    packing) and untraced.
    """
    answerers = [replace(row.answerer, batch_size=1, trace=False) for row in rows]
    prompts = [answerer.prompt_ids(requests[0].prompt_text) for answerer in answerers] if requests else []
    missing = run.missing
    warm = (
        [[seconds_of(a, p) for _ in range(warmup)] for a, p in zip(answerers, prompts, strict=True)] if missing else []
    )
    for index in missing:
        request = requests[index]
        order = list(range(len(rows)))
        random.Random(f"{seed}/{index}").shuffle(order)
        times: list[dict[str, Any]] = [{}] * len(rows)
        for place in order:
            if progress is not None:
                progress(rows[place].label)
            times[place] = time_row(answerers[place], request)
        sample = {
            "id": request.id,
            "index": index,
            "prompt_tokens": times[0]["prompt_tokens"],
            "order": order,
            "rows": times,
        }
        run.append(sample | ({"warmup_seconds": warm} if index == missing[0] else {}))


def seconds_of(answerer: Answerer, prompt: Sequence[int]) -> float:
    """Seconds of one generation."""
    return next(generation.total_seconds for _, generation in answerer.generations([prompt]))


def time_row(answerer: Answerer, request: Request) -> dict[str, Any]:
    """One row on one prompt: what it cost, how many tokens it gave, and the seconds of each phase."""
    prompt = answerer.prompt_ids(request.prompt_text)
    ((_, generation),) = answerer.generations([prompt])
    cost = costs(generation)
    if cost["decision_parts"]["observer"] > 0:
        extra = unfused_seconds(answerer.model, generation)
        cost["decision_parts"]["unfused_attention"] = extra
        cost["decision_seconds"] += extra
    canvas = generation.tokens.tolist()
    return {
        "prompt_tokens": len(prompt),
        "tokens": generated_tokens(canvas, answerer.model.spec.stop_ids),
        "phase_seconds": generation.seconds,
        **cost,
    }


def unfused_seconds(model: Transformer, generation: Any) -> float:
    """What the unfused attention path, forced by an observer, cost a generation beyond the fused one; at least 0.

    Measured after the generation, at its mean sizes: refreshes over all rows, the other steps over their mean number of
    rows.
    """
    rows = generation.rows_total // generation.nfe
    partial_steps = generation.nfe - generation.refreshes
    extra = generation.refreshes * _extra(model, rows, rows)
    if partial_steps:
        computed = max(1, round((generation.rows_computed - generation.refreshes * rows) / partial_steps))
        extra += partial_steps * _extra(model, computed, rows)
    return max(0.0, extra * model.spec.layers)


def _extra(model: Transformer, computed: int, rows: int, repeats: int = 5) -> float:
    """Seconds of one layer's unfused attention less those of the fused one, each the median of some calls."""
    spec = model.spec
    q = torch.randn(computed, spec.heads, spec.head_dim, device=model.device, dtype=model.dtype)
    k, v = torch.randn(2, rows, spec.kv_heads, spec.head_dim, device=model.device, dtype=model.dtype)
    unfused = _median(lambda: observed_attention(q, k, v), model.device, repeats)
    return unfused - _median(lambda: attention(q, k, v), model.device, repeats)


def _median(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    seconds = []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])[repeats // 2]


def write_speed(run: Run, rows: Sequence[SpeedRow]) -> None:
    """Collect a finished run's times by row into `speed.json`, beside its samples."""
    samples = run.samples
    columns = ("seconds", "tokens", "steps", "decision_seconds", "rows_computed", "rows_total", "refreshes", "flops")
    table = []
    for place, row in enumerate(rows):
        times = [sample["rows"][place] for sample in samples]
        peaks = [t["peak_memory_bytes"] for t in times if t["peak_memory_bytes"] is not None]
        table.append(
            {
                "label": row.label,
                "method": row.config["method"]["name"],
                "method_config": row.config["method"],
                "decoding": row.config["decoding"]["name"],
                "decoding_config": row.config["decoding"],
                **{("nfe" if column == "steps" else column): [t[column] for t in times] for column in columns},
                "decision_parts": _summed(t["decision_parts"] for t in times),
                "phase_seconds": _summed(t["phase_seconds"] for t in times),
                "peak_memory_bytes": max(peaks, default=None),
            }
        )
    write_json(
        run.folder / "speed.json",
        {
            "model": rows[0].config["model"]["name"],
            "benchmark": rows[0].config["benchmark"]["name"],
            "reference": rows[0].label,
            "prompts": [sample["id"] for sample in samples],
            "warmup_seconds": next((sample["warmup_seconds"] for sample in samples if "warmup_seconds" in sample), []),
            "rows": table,
        },
    )


def _summed(parts: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
