"""Where a measurement is kept: `<device>.json`, by shape and part; a profile and a plot beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from entropycache.models.transformer import Transformer
from evaluation.bench.steps import predicted_rows, step_call
from evaluation.files import as_json, make_folder, read_json, write_json
from evaluation.provenance import environment


class Results:
    """The results of one device and one shape in a folder. A part that is measured again replaces itself alone, when
    it is complete; until then what there is of it stands under `unfinished`.
    """

    def __init__(self, folder: Path, device: torch.device, shape: Mapping[str, Any]) -> None:
        """Raises ValueError, StoreError where results cannot be kept there: before anything is measured."""
        self.folder, self.shape = folder, dict(shape)
        self.name = device_name(device)
        self.device = device
        make_folder(folder)
        known = self.read()["shapes"].get(shape["name"], {}).get("shape", self.shape)
        for key in known.keys() | self.shape.keys():
            if known.get(key) != self.shape.get(key):
                raise ValueError(
                    f"shape.{key}={self.shape.get(key)}: {self.path} holds a shape {shape['name']!r} with "
                    f"{key} {known.get(key)}; shape.name=<another> or output=<another folder> would do"
                )

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def read(self) -> dict[str, Any]:
        """What is on record. Raises ValueError, StoreError where the file is no results of a bench."""
        if not self.path.exists():
            return {"device": self.name, "shapes": {}}
        record = read_json(self.path)
        if not isinstance(record.get("shapes"), dict):
            raise ValueError(f"{self.path} is no file of bench results: move it away, or output=<another folder>")
        return record

    def write(
        self, part: str, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], complete: bool = True
    ) -> None:
        """Put a part's results in their place, with the settings and the surroundings that they were made in."""
        record = self.read()
        shape = record["shapes"].setdefault(self.shape["name"], {"shape": self.shape, "parts": {}})
        unfinished = shape.setdefault("unfinished", {})
        (shape["parts"] if complete else unfinished)[part] = {
            "settings": as_json(settings),
            "threads": torch.get_num_threads() if self.device.type == "cpu" else None,
            "environment": environment(),
            "rows": list(rows),
        }
        if complete:
            unfinished.pop(part, None)
        if not unfinished:
            del shape["unfinished"]
        write_json(self.path, record)
        if part == "growth" and complete:
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
            call = step_call(model, prompt, canvas, computed, predicted_rows(computed, sizes))
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
