"""What every test shares: one thread, no network, fixed examples, and the optional folder beside the checkout."""

import os
from pathlib import Path

# Before any import of the libraries that read them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
"""Official data and reference traces; not part of the repository. Tests that read it carry `@pytest.mark.shared`."""

torch.set_num_threads(1)  # the workers of pytest-xdist already fill the cores

# The same examples on every run; a slow machine is no failure.
settings.register_profile(
    "deterministic", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("deterministic")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ../shared, or a skip with the reason."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared beside the checkout")
    return SHARED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `shared` where the folder is absent."""
    if SHARED.is_dir():
        return
    skip = pytest.mark.skip(reason="needs ../shared beside the checkout")
    for item in items:
        if "shared" in item.keywords:
            item.add_marker(skip)
