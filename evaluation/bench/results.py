"""Where a measurement is kept: `<device>.json`, by shape and part; a profile and a plot beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from entropycache.models.transformer import Transformer
from evaluation.bench.steps import step_call
from evaluation.files import read_json, write_json
from evaluation.provenance import environment


class Results:
    """The results of one device and one shape in a folder. A part that is measured again replaces itself alone."""

    def __init__(self, folder: Path, device: torch.device, shape: Mapping[str, Any]) -> None:
        self.folder, self.shape = folder, shape
        self.name = device_name(device)
        self.device = device

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def write(self, part: str, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        """Put a part's results in their place, with the settings and the surroundings that they were made in."""
        record: dict[str, Any] = {"device": self.name, "shapes": {}}
        if self.path.exists():
            record = read_json(self.path)
        shape = record["shapes"].setdefault(self.shape["name"], {"shape": dict(self.shape), "parts": {}})
        threads = torch.get_num_threads() if self.device.type == "cpu" else None
        shape["parts"][part] = {
            "settings": settings,
            "threads": threads,
            "environment": environment(),
            "rows": list(rows),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path, record)
        if part == "growth":
            from evaluation.bench.plot import plot_growth

            plot_growth(rows, self.beside("growth.png"))

    def beside(self, name: str) -> Path:
        return self.folder / f"{self.name}_{self.shape['name']}_{name}"

    def write_profile(self, model: Transformer, sizes: Mapping[str, Any], steps: int = 3) -> Path:
        """Where the time of a step goes, by operator, for each number of rows of the part `steps`."""
        from torch.profiler import ProfilerActivity, profile

        prompt, canvas = sizes["prompts"][0], sizes["canvas"]
        activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (self.device.type == "cuda")]
        tables = []
        for computed in (*sizes["rows"], prompt + canvas):
            call = step_call(model, prompt, canvas, computed, min(computed, sizes["predict"]))
            with torch.inference_mode():
                call()
                with profile(activities=activities) as seen:
                    for _ in range(steps):
                        call()
            sort = f"self_{self.device.type}_time_total"
            table = seen.key_averages().table(sort_by=sort, row_limit=30, max_name_column_width=48)
            tables.append(f"{steps} steps of {computed} rows of {prompt + canvas}\n{table}")
        path = self.beside("profile.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(tables))
        return path


def device_name(device: torch.device) -> str:
    """The device's name as a file name: what the driver calls a GPU; a CPU's model with the threads in use."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{cpu_model()} {torch.get_num_threads()} threads"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def cpu_model() -> str:
    """What Linux calls the processor, elsewhere just "cpu"."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def line(row: Mapping[str, Any]) -> str:
    """A result in one line."""
    return "  ".join(f"{key} {short(value)}" for key, value in row.items() if not isinstance(value, Mapping))


def short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
