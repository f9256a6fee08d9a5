"""How much memory a batch of sequences takes, estimated before it starts, and what to say where it is too much.

An upper estimate: every packed sequence refreshes in the same step, and the longest ones come together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from entropycache.decoding import Decoding
from entropycache.models.attention import WEIGHTS_BYTES
from entropycache.models.transformer import Model, scratch_numbers
from entropycache.policy import CachePolicy
from entropycache.types import ModelSpec

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def kept_bytes(spec: ModelSpec, rows: int, dtype: torch.dtype) -> int:
    """Keys and values of one sequence, all layers."""
    return 2 * spec.layers * rows * spec.kv_heads * spec.head_dim * dtype.itemsize


def observed_bytes(rows: int) -> int:
    """What writing out a refresh's attention takes (`transformer.observed_attention`): the weights of some rows before
    and after they are grouped by heads, and their mean.
    """
    return 2 * WEIGHTS_BYTES + 4 * rows**2


def logit_bytes(dtype: torch.dtype, sampled: bool) -> int:
    """What becomes of a logit at most: itself, widened, its softmax or, at a temperature, itself and its noise once
    more; a committed row's copy for the entropy, or float64 noise before it is rounded.
    """
    size, wide = dtype.itemsize, max(4, dtype.itemsize)
    widened = wide if size < wide else 0
    return size + widened + 2 * wide + (8 if sampled else size)


def working_bytes(spec: ModelSpec, packed: int, read: int, dtype: torch.dtype, sampled: bool = False) -> int:
    """The largest that a step's temporaries get: `packed` rows through the layers, `read` of them through the head."""
    d, size, wide = spec.hidden, dtype.itemsize, max(4, dtype.itemsize)
    rotated = packed * (spec.heads + spec.kv_heads) * spec.head_dim * wide if size < wide else 0
    layers = 5 * packed * size * d + rotated
    logits = packed * size * d + read * spec.vocab * logit_bytes(dtype, sampled)
    return size * scratch_numbers(spec, packed) + max(layers, logits)


def batch_bytes(
    spec: ModelSpec, policy: CachePolicy, decoding: Decoding, rows: Sequence[int], dtype: torch.dtype, predict_all: bool
) -> int:
    """Estimated peak, beside the weights, of sequences of so many rows packed together."""
    window = decoding.window_length if decoding.window == "sliding" else decoding.block
    read = decoding.gen_length if policy.reads_all_masks else min(window or decoding.gen_length, decoding.gen_length)
    kept = sum(kept_bytes(spec, length, dtype) + policy.extra_bytes(spec, length, dtype) for length in rows)
    head_rows = sum(rows) if predict_all else len(rows) * read
    return kept + working_bytes(spec, sum(rows), head_rows, dtype, sampled=decoding.temperature > 0)


def check_fits(
    model: Model,
    policy: CachePolicy,
    decoding: Decoding,
    rows: Sequence[int],
    batch_size: int,
    predict_all: bool = False,
) -> None:
    """Refuse, before the first sample, a batch that is not expected to fit; where the platform cannot tell what is
    free, nothing is refused.

    Raises ValueError, naming the largest batch that fits.
    """
    free = free_bytes(model.device)
    if free is None:
        return
    longest = sorted(rows, reverse=True)[:batch_size]

    def needed(batch: int) -> int:
        return batch_bytes(model.spec, policy, decoding, longest[:batch], model.dtype, predict_all)

    if not longest or needed(len(longest)) <= free:
        return
    fitting = max((batch for batch in range(1, len(longest)) if needed(batch) <= free), default=0)
    gib, free_gib = needed(len(longest)) / 2**30, free / 2**30
    raise ValueError(
        f"batch_size {batch_size} of {longest[0]} rows needs an estimated {gib:.2f} GiB beside the weights, "
        f"{free_gib:.2f} GiB are free on {model.device}; "
        + (f"batch_size {fitting} would do" if fitting else "not even one sequence fits, a shorter one would")
    )


def free_bytes(device: torch.device) -> int | None:
    """What can still be allocated, or None where the platform cannot tell."""
    if device.type == "cuda":
        # What the allocator holds without using it can be given out again.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu" or not Path("/proc/meminfo").exists():
        return None
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if CONTAINER_LIMIT.exists() and (limit := CONTAINER_LIMIT.read_text().strip()) != "max":
        free = min(free, int(limit) - resident_bytes())
    return free


def resident_bytes() -> int:
    """Memory that this process holds (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: torch's CPU allocator and the CUDA libraries say so in a plain RuntimeError."""
    said = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in said)
