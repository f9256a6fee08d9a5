"""What a step costs on this machine, beside the bare arithmetic of the same shapes: `results/bench/<device>.json`.

python scripts/bench.py                                   # a small model, every part: minutes on two cores
python scripts/bench.py parts=[steps] --profile           # one part, and where the time of a step goes
python scripts/bench.py shape=llada_8b device=cuda        # a published model's shape
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from entry import build, check_device, entry_point, plain
from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    import torch

    from evaluation.bench.methods import Method
    from evaluation.bench.model import random_model
    from evaluation.bench.results import Results, line
    from evaluation.bench.settings import OF_METHODS, check

    config = plain(cfg)
    check(config, list(PARTS))
    check_device(config["device"])
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    device = torch.device(config["device"])
    results = Results(Path(config["output"]), device, config["shape"])
    methods = [
        Method(name, build(m["policy"]), m["decoding"], m["refresh_share"]) for name, m in config["compared"].items()
    ]
    model = random_model(config["shape"], device, config["seed"])
    for part in (part for part in PARTS if part in config["parts"]):
        print(f"{part}:", flush=True)
        settings = {"seed": config["seed"], **config[part]}
        if part in OF_METHODS:
            settings |= {"schedule": config["schedule"], "compared": config["compared"]}
        rows: list[dict[str, Any]] = []
        for row in PARTS[part](model, methods, config):
            print("  " + line(row), flush=True)
            rows.append(row)
            results.write(part, settings, rows, complete=False)  # a bench that is stopped keeps what it has
        results.write(part, settings, rows)
    if config["profiler"]:
        print(results.write_profile(model, config["steps"]))
    print(results.path)


def steps(model: Any, methods: Any, config: dict[str, Any]) -> Any:
    from evaluation.bench.steps import measure_steps

    return measure_steps(model, config["steps"])


def of_methods(part: str) -> Any:
    """A part that runs every method with the sizes of that name."""

    def measure(model: Any, methods: Any, config: dict[str, Any]) -> Any:
        from evaluation.bench.methods import measure_methods

        return measure_methods(model, methods, config[part], config["schedule"])

    return measure


def memory(model: Any, methods: Any, config: dict[str, Any]) -> Any:
    from evaluation.bench.memory import measure_apart, measure_memory

    if model.device.type == "cuda":  # whose allocator tells a peak whatever was before
        return measure_memory(model, methods, config["memory"], config["schedule"])
    own = {key: config[key] for key in ("shape", "seed", "threads", "memory", "schedule")}
    return measure_apart(methods, own)


def loading(model: Any, methods: Any, config: dict[str, Any]) -> Any:
    from evaluation.bench.memory import measure_loading

    yield measure_loading(model.spec, config["loading"]["gigabytes"])


PARTS = {
    "steps": steps,
    "methods": of_methods("methods"),
    "packing": of_methods("packing"),
    "growth": of_methods("growth"),
    "memory": memory,
    "loading": loading,
}

if __name__ == "__main__":
    sys.argv = ["profiler=true" if argument == "--profile" else argument for argument in sys.argv]
    entry_point(
        main, "bench", stopped="stopped; what was measured is kept, a part that is not complete under `unfinished`"
    )
