"""Whose is a GPU: one for each job of a launcher, and none that is busy for a speed measurement."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_held: list[int] = []  # the lock on this process's GPU, for as long as the process lives


def nvidia_smi(*query: str) -> list[list[str]]:
    """Rows of an `nvidia-smi` query, none where there is no such command or it fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(
        ["nvidia-smi", *query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False, timeout=60
    )
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs that this process may use, in CUDA's order (which CUDA_VISIBLE_DEVICES narrows)."""
    rows = nvidia_smi("--query-gpu=index,uuid")
    by_name = {name: uuid for index, uuid in rows for name in (index, uuid)}
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    unasked = allowed == "" and os.environ.get("SUBMITIT_EXECUTOR") == "local"  # it hides what a job did not number
    if allowed is None or unasked:
        return [uuid for _, uuid in rows]
    return [by_name[name] for name in allowed.split(",") if name in by_name]


def take_gpu() -> str | None:
    """Take the first GPU that no other job holds, and make it this process's only one; returns its UUID.

    To be called before CUDA is first used. A process keeps what it took; where there is no GPU, nothing happens. Jobs
    of one machine and user agree through locks in the temporary folder, which end with their process.

    Raises RuntimeError where all are taken.
    """
    gpus = visible_gpus()
    if _held or not gpus:
        return gpus[0] if gpus else None
    folder = Path(tempfile.gettempdir(), f"entropycache-gpus-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for uuid in gpus:
        descriptor = os.open(folder / f"{uuid}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        _held.append(descriptor)
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        return uuid
    raise RuntimeError(f"all {len(gpus)} GPUs are taken by other jobs; no more jobs at a time than GPUs would do")


def check_idle(device: str) -> None:
    """Refuse a GPU that another process computes on. A CPU always has other work, and is not looked at.

    Raises RuntimeError that names the processes.
    """
    if not device.startswith("cuda"):
        return
    gpus, number = visible_gpus(), int(device.partition(":")[2] or 0)
    if number >= len(gpus):
        return
    rows = nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory")
    others = [(pid, memory) for uuid, pid, memory in rows if uuid == gpus[number] and pid != str(os.getpid())]
    if others:
        named = ", ".join(f"process {pid} ({memory} MiB)" for pid, memory in others)
        raise RuntimeError(
            f"device={device} is busy with {named}: times taken now would mean nothing; wait for it to end, "
            "or set allow_busy_device=true"
        )
