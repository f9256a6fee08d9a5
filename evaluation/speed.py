"""Paired speed: several methods on the same prompts in one process, in turn, in an order that changes from prompt to
prompt.

One prompt's times of all rows are one sample of the run store, so that a killed measurement resumes with the next
prompt and every ratio stays paired. Ratios and intervals are made from these times by `statistics.speedup`, never here.
The answers are kept: a run of the same settings need not give them again (`take_answers`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from entropycache.models.attention import attention, observed_attention
from entropycache.models.transformer import Transformer
from evaluation.benchmarks import Request
from evaluation.comparison import comparable
from evaluation.files import write_json
from evaluation.generate import Answerer, question
from evaluation.runs import load_run
from evaluation.store import Config, Run

# The reference decodes one token a step; what its rule and its window then are is part of what is compared.
REFERENCE_FREE = (
    "method",
    *(f"decoding.{key}" for key in ("name", "rule", "threshold", "factor", "steps", "window", "window_length")),
)

SHARED = ("model", "benchmark", "seed", "device", "predict_all")  # what a run and a measurement must agree in
OWN = ("phase_seconds", "unfused_seconds")  # what a measurement records of an answer beyond what a run does


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
    """One row on one prompt: its answer with what that cost, the seconds of each phase, and those that the unfused
    attention path lost.
    """
    ((_, generation),) = answerer.generations([answerer.prompt_ids(request.prompt_text)])
    answer = answerer.answer(generation)
    watched = answer["decision_parts"]["observer"] > 0
    return answer | {
        "phase_seconds": generation.seconds,
        "unfused_seconds": unfused_seconds(answerer.model, generation) if watched else None,
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
    k, v = torch.randn(2, spec.kv_heads, rows, spec.head_dim, device=model.device, dtype=model.dtype)
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
    columns = {name: name for name in ("seconds", "rows_computed", "rows_total", "refreshes", "flops")}
    columns |= {"tokens": "generated_tokens", "nfe": "steps"}
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
                **{column: [t[name] for t in times] for column, name in columns.items()},
                "decision_seconds": [t["decision_seconds"] + (t["unfused_seconds"] or 0.0) for t in times],
                "decision_parts": _summed(_decision_parts(t) for t in times),
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


def _decision_parts(times: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by part, the unfused attention among them where there was any."""
    unfused = times["unfused_seconds"]
    return times["decision_parts"] | ({} if unfused is None else {"unfused_attention": unfused})


def _summed(parts: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def take_answers(run: Run, measured: Path, config: Config, requests: Sequence[Request], answerer: Answerer) -> None:
    """Give a run the answers that a paired measurement of the same settings gave, where it lacks them.

    Packing changes no token, so that they are what the run would give; questions of which it keeps step records are
    left to it. A measurement of other settings, or of other questions, has nothing to give.

    Args:
        run: the run, open.
        measured: folder of the measurement.
        config: the run's configuration, as it is keyed.
        requests: all questions of the run.
        answerer: what the run is made with.
    """
    found = load_run(measured)
    mine = {"method": config["method"], "decoding": config["decoding"]}
    rows = list(found.config.get("rows", ()))
    if mine not in rows or any(found.config.get(key) != config[key] for key in SHARED):
        return
    by_id = {sample["id"]: sample["rows"][rows.index(mine)] for sample in found.samples}
    for request in (requests[index] for index in run.missing if not answerer.traces(index)):
        if request.id in by_id:
            row = by_id[request.id]
            run.append(question(request) | {key: row[key] for key in row if key not in OWN})
