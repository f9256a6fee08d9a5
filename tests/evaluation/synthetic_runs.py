"""Run directories as `scripts/run.py` and `scripts/speed.py` leave them, made without a model, to test reports on."""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

PHASES = ("candidates", "plan", "forward", "observer", "commit", "entropy", "observe")
DECIDING = ("plan", "observer", "entropy", "observe")
PROMPT, CANVAS, BLOCK = 24, 32, 16

ONE_TOKEN = {
    "name": "one_token",
    "_target_": "entropycache.Decoding",
    "gen_length": CANVAS,
    "window": "blockwise",
    "block_length": BLOCK,
    "rule": "top_n",
    "steps": None,
    "confidence": "probability",
    "temperature": 0.0,
    "eos": "decode_all",
    "eos_suppression": False,
    "forbid": ["mask"],
}
THRESHOLD = ONE_TOKEN | {"name": "threshold", "rule": "threshold", "threshold": 0.9}
SLIDING = THRESHOLD | {"name": "sliding_threshold", "window": "sliding", "window_length": 16, "block_length": None}

FULL = {"name": "full_recompute", "_target_": "baselines.FullRecompute"}
PREFIX = {"name": "fast_dllm_prefix", "_target_": "baselines.FastDLLM", "variant": "prefix", "first_step": "rule"}
DUAL = {"name": "fast_dllm_dual", "_target_": "baselines.FastDLLM", "variant": "dual", "first_step": "rule"}
D2CACHE = {"name": "d2cache", "_target_": "baselines.D2Cache", "rollout_p": 0.1, "current_k": 32, "sigma": 10.0}
ELASTIC = {"name": "elastic_cache", "_target_": "baselines.ElasticCache", "gamma": 0.9, "tracked": 1}


def entropy_cache(tau: float = 0.5, k: int = 16) -> dict[str, Any]:
    """EntropyCache's settings as its YAML gives them."""
    names = {"name": "entropycache", "_target_": "entropycache.EntropyCache"}
    return names | {"tau": tau, "k": k, "refresh_on_new_window": False}


# Seconds a prompt, share of rows computed, share of steps that refresh, share of time spent deciding.
COSTS = {
    ("full_recompute", "one_token"): (2.0, 1.0, 1.0, 0.0),
    ("full_recompute", "threshold"): (0.9, 1.0, 1.0, 0.0),
    ("full_recompute", "sliding_threshold"): (0.9, 1.0, 1.0, 0.0),
    ("fast_dllm_prefix", "threshold"): (0.5, 0.5, 0.1, 0.001),
    ("fast_dllm_dual", "threshold"): (0.4, 0.35, 0.1, 0.001),
    ("d2cache", "threshold"): (0.6, 0.4, 0.05, 0.12),
    ("elastic_cache", "sliding_threshold"): (0.7, 0.45, 0.07, 0.17),
    ("entropycache", "threshold"): (0.35, 0.3, 0.15, 0.006),
}
MAIN = (
    (FULL, ONE_TOKEN),
    (FULL, THRESHOLD),
    (PREFIX, THRESHOLD),
    (DUAL, THRESHOLD),
    (D2CACHE, THRESHOLD),
    (ELASTIC, SLIDING),
    (entropy_cache(), THRESHOLD),
)


def digest(value: Any) -> str:
    """A hash of a value, the same on every run."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def config(model: str, benchmark: str, method: Mapping, decoding: Mapping, limit: int | None = None) -> dict[str, Any]:
    """A resolved configuration of `scripts/run.py`."""
    return {
        "model": {"name": model, "path": model, "revision": None, "dtype": "float32", "chat": True, "bos": True},
        "method": dict(method),
        "decoding": dict(decoding),
        "benchmark": {"name": benchmark, "data": "generated", "split": "test", "count": 500, "num_fewshot": 4},
        "limit": limit,
        "seed": 0,
        "device": "cpu",
        "batch_size": 1,
        "trace": False,
        "predict_all": False,
    }


def sample(
    benchmark: str, index: int, seconds: float, rows: float, refreshes: float, deciding: float
) -> dict[str, Any]:
    """One line of samples.jsonl."""
    steps = 16
    total = steps * (PROMPT + CANVAS)
    prompt = f"Question: {index}?"
    return {
        "id": f"{benchmark}/test/{index}",
        "index": index,
        "subtask": None,
        "doc": {"question": prompt, "answer": f"#### {index}"},
        "target": str(index),
        "prompt": prompt,
        "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        "prompt_tokens": PROMPT,
        "tokens": list(range(CANVAS)),
        "text": f"So it is {index}. #### {index}",
        "generated_tokens": 20,
        "tokens_per_step": 20 / steps,
        "empty": index == 3,
        "truncated": False,
        "seconds": seconds,
        "steps": steps,
        "refreshes": max(1, round(steps * refreshes)),
        "rows_computed": total * rows,
        "rows_total": total,
        "recompute_ratio": rows,
        "flops": 1e9 * rows,
        "decision_seconds": seconds * deciding,
        "decision_parts": dict(zip(DECIDING, (seconds * deciding, 0.0, 0.0, 0.0), strict=True)),
        "peak_memory_bytes": 100 * 2**20,
    }


def write_run(
    root: Path,
    settings: Mapping[str, Any],
    *,
    n: int = 50,
    made: int | None = None,
    accuracy: float = 0.8,
    failed: str | None = None,
    scored: bool = True,
    traced: bool = False,
    started: str = "2026-01-01T00:00:00+00:00",
    seed: int = 0,
) -> Path:
    """One run. `made` below `n` leaves it unfinished; `failed` marks it so, with that error."""
    model, benchmark = settings["model"]["name"], settings["benchmark"]["name"]
    method, decoding = settings["method"]["name"], settings["decoding"]["name"]
    key = digest([settings, started])[:16]
    folder = root / benchmark / model / method / key
    folder.mkdir(parents=True)
    made = n if made is None else made
    cost = COSTS.get((method, decoding), (0.5, 0.5, 0.1, 0.01))
    chance = random.Random(f"{seed}/{key}")
    samples = [sample(benchmark, i, cost[0] * chance.uniform(0.8, 1.2), *cost[1:]) for i in range(made)]
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")
    write_json(folder / "manifest.json", manifest(settings, n, key, started))
    content = "".join(json.dumps(one) + "\n" for one in samples)
    (folder / "samples.jsonl").write_text(content, encoding="utf-8")
    if traced:
        write_trace(folder)
    if failed is not None:
        (folder / "FAILED").write_text(failed + "\n", encoding="utf-8")
    elif made == n:
        if scored:
            write_json(folder / "scores.json", scores(benchmark, samples, accuracy, chance))
        write_json(folder / "DONE", {"samples": n, "samples_sha256": hashlib.sha256(content.encode()).hexdigest()})
    return folder


def manifest(settings: Mapping[str, Any], n: int, key: str, started: str, command: str | None = None) -> dict[str, Any]:
    """What stands beside a run's configuration."""
    overrides = [f"{group}={settings[group]['name']}" for group in ("model", "method", "decoding", "benchmark")]
    session = {
        "started": started,
        "with": 0,
        "git": {"commit": "0" * 40, "dirty": False},
        "python": "3.11.0",
        "packages": {"torch": "2.13.0"},
        "platform": "Linux x86_64",
        "driver": None,
        "command": command or " ".join(["run.py", *overrides]),
    }
    return {
        "samples": n,
        "device": settings["device"],
        "dtype": settings["model"]["dtype"],
        "attention": "sdpa, written out" if settings["method"]["name"] in ("d2cache", "elastic_cache") else "sdpa",
        "seed": 0,
        "prompts_sha256": digest([settings["benchmark"], n]),
        "fewshot_sha256": digest(settings["benchmark"]["num_fewshot"]),
        "data_sha256": digest(settings["benchmark"]["name"]),
        "key": key,
        "code_version": "c" * 64,
        "sessions": [session],
    }


def scores(benchmark: str, samples: Sequence[Mapping], accuracy: float, chance: random.Random) -> dict[str, Any]:
    """scores.json, with about the accuracy asked for."""
    right = [chance.random() < accuracy for _ in samples]
    mean = sum(right) / len(right)
    shown = {"n": len(right), "mean": mean, "se": (mean * (1 - mean) / max(1, len(right) - 1)) ** 0.5}
    return {
        "benchmark": benchmark,
        "shown": "strict",
        "n": len(samples),
        "until": ["Question:"],
        "accuracy": {"strict": shown, "flexible": shown},
        "subtasks": None,
        "micro": None,
        "macro": None,
        "samples": [
            {"id": one["id"]}
            | {name: {"correct": ok, "extracted": str(one["index"]), "note": None} for name in ("strict", "flexible")}
            for one, ok in zip(samples, right, strict=True)
        ],
    }


def write_speed(
    root: Path,
    model: str,
    benchmark: str,
    settings: Iterable[tuple[Mapping, Mapping]] = MAIN,
    *,
    prompts: int = 8,
    slower: float = 1.0,
) -> Path:
    """A paired measurement of the settings, the first of them its reference. `slower` stretches all but the first."""
    chance = random.Random(f"{model}/{benchmark}")
    hardness = [chance.uniform(0.7, 1.4) for _ in range(prompts)]
    rows = [speed_row(m, d, hardness, slower if place else 1.0) for place, (m, d) in enumerate(settings)]
    whole = config(model, benchmark, {"name": "speed"}, {}) | {
        "rows": [row["label"] for row in rows],
        "prompts": prompts,
    }
    whole.pop("decoding")
    folder = root / benchmark / model / "speed" / digest(whole)[:16]
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    plain = config(model, benchmark, {"name": "speed"}, {"name": ""})
    command = f"speed.py model={model} benchmark={benchmark}"
    record = manifest(plain, prompts, folder.name, "2026-01-02", command)
    write_json(folder / "manifest.json", record)
    ids = [f"{benchmark}/test/{i}" for i in range(prompts)]
    content = "".join(json.dumps({"id": name, "index": i, "rows": []}) + "\n" for i, name in enumerate(ids))
    (folder / "samples.jsonl").write_text(content, encoding="utf-8")
    speed = {"model": model, "benchmark": benchmark, "reference": rows[0]["label"], "prompts": ids, "rows": rows}
    write_json(folder / "speed.json", speed)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    write_json(folder / "DONE", {"samples": prompts, "samples_sha256": sha256})
    return folder


def speed_row(method: Mapping, decoding: Mapping, hardness: Sequence[float], slower: float = 1.0) -> dict[str, Any]:
    """One row of speed.json."""
    mean, rows, refreshes, deciding = COSTS.get((method["name"], decoding["name"]), (0.5, 0.5, 0.1, 0.01))
    if method["name"] == "entropycache":
        mean += 0.02 / (0.1 + method["tau"]) + 0.002 * method["k"]
    chance = random.Random(f"{method}{decoding}")
    seconds = [mean * slower * h * chance.uniform(0.9, 1.1) for h in hardness]
    steps = CANVAS if decoding["rule"] == "top_n" else 12
    spent = sum(seconds)
    phases = dict.fromkeys(PHASES, 0.0) | {"candidates": 0.01 * spent, "commit": 0.05 * spent, "plan": deciding * spent}
    phases["forward"] = spent - sum(phases.values())
    every = [1] * len(hardness)
    return {
        "label": f"{method['name']} {decoding['name']} "
        + ",".join(f"{k}={method[k]}" for k in ("tau", "k") if k in method),
        "method": method["name"],
        "method_config": dict(method),
        "decoding": decoding["name"],
        "decoding_config": dict(decoding),
        "seconds": seconds,
        "tokens": [20 for _ in every],
        "nfe": [steps for _ in every],
        "decision_seconds": [deciding * s for s in seconds],
        "rows_computed": [steps * 56 * rows for _ in every],
        "rows_total": [steps * 56 for _ in every],
        "refreshes": [max(1, round(steps * refreshes)) for _ in every],
        "flops": [1e9 * rows * steps for _ in every],
        "decision_parts": dict(zip(DECIDING, (deciding * spent, 0.0, 0.0, 0.0), strict=True)),
        "phase_seconds": phases,
        "peak_memory_bytes": 100 * 2**20,
    }


def write_trace(folder: Path, index: int = 0) -> None:
    """steps.parquet of one sample: two tokens a step from the left, a refresh every fourth step."""
    masked = list(range(PROMPT, PROMPT + CANVAS))
    done: list[int] = []
    rows = []
    while masked:
        step, predicted = len(rows), [row for row in masked if (row - PROMPT) // BLOCK == (masked[0] - PROMPT) // BLOCK]
        refresh, committed = step % 4 == 0, predicted[:2]
        computed = list(range(PROMPT + CANVAS)) if refresh else sorted({*predicted, *done[-4:]})
        seconds = {f"seconds_{phase}": 0.001 for phase in PHASES}
        rows.append(
            {"index": index, "step": step, "refresh": refresh, "computed": computed, "predicted": predicted}
            | {
                "committed": committed,
                "tokens": [100 + row for row in committed],
                "confidence": [0.9 for _ in committed],
            }
            | {"entropy": 0.1 * (step % 5), "rows_written": 2 * len(computed)}
            | seconds
        )
        done += committed
        masked = [row for row in masked if row not in committed]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "steps.parquet")


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_paper_table(
    root: Path, models: Sequence[str] = ("tiny_llada",), benchmarks: Sequence[str] = ("mini_gsm8k",)
) -> None:
    """Every main setting on every model and benchmark, scored and timed, some traced, and one τ × k sweep."""
    for model in models:
        for benchmark in benchmarks:
            for place, (method, decoding) in enumerate(MAIN):
                traced = benchmark == benchmarks[0] and decoding["rule"] != "top_n"
                run = config(model, benchmark, method, decoding)
                write_run(root, run, accuracy=0.85 - 0.01 * place, traced=traced)
            write_speed(root, model, benchmark)
    write_sweep(root, models[0], benchmarks[0])


def write_sweep(root: Path, model: str, benchmark: str) -> None:
    """EntropyCache over τ and k, scored and timed; (0.5, 16), the default, is left to the main settings."""
    grid = [(entropy_cache(tau, k), THRESHOLD) for tau in (0.05, 0.5, 2.0) for k in (4, 16)]
    for method, decoding in grid:
        if (method["tau"], method["k"]) != (0.5, 16):
            write_run(root, config(model, benchmark, method, decoding), accuracy=0.85 - 0.05 * method["tau"])
    write_speed(root, model, benchmark, [(FULL, ONE_TOKEN), (FULL, THRESHOLD), *grid], prompts=6)
