"""Peak memory: of each method beside weights and buffers, and while a checkpoint is read."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from entropycache import Decoding
from entropycache.memory import batch_bytes, resident_bytes
from entropycache.models.checkpoint import save_checkpoint
from entropycache.models.transformer import Transformer
from entropycache.recorder import PeakMemory
from entropycache.types import ModelSpec
from evaluation.bench.methods import Method, Steps
from evaluation.bench.model import random_model

M_MMAP_THRESHOLD = -3  # glibc's malloc.h: larger blocks are mapped, and unmapped when they are freed
ALLOWED = 64 * 2**20  # beside three times the logits of the rows that a step reads


def measure_memory(
    model: Transformer, methods: list[Method], config: Mapping[str, Any], schedule: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """One result for each method, prompt length and number of packed sequences; nothing where the platform cannot tell
    a peak.
    """
    canvas = config["canvas"]
    for method in methods:
        decoding = method.decode(canvas, schedule)
        # What libraries load and allocate on first use is not the method's.
        rows_read(Steps(model, method, decoding, 1, 1), config["steps"])
        for prompt in config["prompts"]:
            for batch in config["batches"]:
                peak = peak_of(model, method, decoding, prompt, batch, config["steps"])
                if peak is not None:
                    yield {"method": method.name, "rows": prompt + canvas, "batch_size": batch, **peak}


def measure_apart(methods: list[Method], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`measure_memory` on the CPU in a process of its own: in one that has done other things, their freed blocks lie in
    the threads' arenas and count as in use.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_apart, methods, config).result()


def _apart(methods: list[Method], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    model = random_model(config["shape"], torch.device("cpu"), config["seed"])
    return list(measure_memory(model, methods, config["memory"], config["schedule"]))


def peak_of(
    model: Transformer, method: Method, decoding: Decoding, prompt: int, batch: int, later: int
) -> dict[str, int] | None:
    """The peak beside weights and the method's own buffers, what is allowed, and what had been estimated, all in
    bytes.
    """
    model.release_scratch()  # it counts, however long it has been kept
    before = in_use(model.device)
    peak = PeakMemory(model.device)
    peak.reset()
    steps = Steps(model, method, decoding, prompt, batch)
    read = rows_read(steps, later)
    highest, buffers = peak.read(), steps.buffer_bytes()
    if highest is None:
        return None
    rows = [prompt + decoding.gen_length] * batch
    return {
        "buffers": buffers,
        "peak": highest - before - buffers,
        "allowed": ALLOWED + 3 * read * model.spec.vocab * 4,
        "estimated": batch_bytes(model.spec, method.policy, decoding, rows, model.dtype, False) - buffers,
    }


def rows_read(steps: Steps, later: int) -> int:
    """Make the first step and so many more; the most rows that the head read in one of them, all sequences together."""
    most = 0

    def count(module: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        nonlocal most
        most = max(most, output.shape[0])

    hook = steps.model.head.register_forward_hook(count)
    for _ in range(1 + later):
        steps.advance()
    hook.remove()
    return most


def in_use(device: torch.device) -> int:
    """Bytes held now. On Linux what is free is given back to the system first, and from now on in every such case, so
    that the resident set is what tensors hold, not what the C library keeps for later.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(device)
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 2**20)
        library.malloc_trim(0)
    return resident_bytes()


LOAD = """
import sys
import torch
from entropycache import load_model
from entropycache.recorder import PeakMemory
load_model(sys.argv[1])  # what torch loads on first use is not the checkpoint's
memory = PeakMemory(torch.device("cpu"))
memory.reset()
before = memory.read()
model = load_model(sys.argv[2])
print(memory.read() - before)
"""


def measure_loading(spec: ModelSpec, gigabytes: float) -> dict[str, Any]:
    """Peak of a process that reads a checkpoint of this size, float32, over the checkpoint's size (CPU, Linux).

    The checkpoint has one layer of the shape, and as large a vocabulary as makes up the size.

    Raises ValueError where the layer alone is larger.
    """
    one = replace(spec, layers=1, vocab=64, mask_id=1, eos_id=2, stop_ids=(2,), bos_id=None)
    with torch.device("meta"):
        fixed = sum(parameter.numel() for parameter in Transformer(one).parameters()) - 2 * one.vocab * one.hidden
    vocab = int((gigabytes * 2.5e8 - fixed) / (2 * spec.hidden))
    if vocab < one.vocab:
        least = (fixed + 2 * one.vocab * one.hidden) / 2.5e8
        raise ValueError(f"loading.gigabytes={gigabytes} is less than a layer of this shape; {least:.2f} would do")
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small", Path(folder) / "large"
        save_checkpoint(zeros(one), small)
        save_checkpoint(zeros(replace(one, vocab=vocab)), large)
        size = (large / "model.safetensors").stat().st_size
        run = subprocess.run(
            [sys.executable, "-c", LOAD, str(small), str(large)], capture_output=True, text=True, check=True
        )
        return {"checkpoint_bytes": size, "peak_bytes": int(run.stdout), "ratio": int(run.stdout) / size}


def zeros(spec: ModelSpec) -> Transformer:
    """A model of this shape without any information."""
    with torch.device("meta"):
        model = Transformer(spec)
    model.to_empty(device="cpu").requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    return model
