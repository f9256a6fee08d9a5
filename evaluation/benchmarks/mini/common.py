"""What every mini generator shares: splits that cannot overlap, and seeded drawing without repeats."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

SPLITS = {"test": range(10), "fewshot": range(10, 15), "train": range(15, 100)}
MAX_FRUITLESS = 20_000


def split_of(key: str) -> str:
    """The one split an item belongs to, by the hash of its content: no seed, count or benchmark moves it to another."""
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 100
    return next(name for name, buckets in SPLITS.items() if bucket in buckets)


def draw(make: Callable[[random.Random], tuple[str, dict]], split: str, count: int, seed: int) -> list[dict]:
    """`count` different items of one split. `make` returns (content key, item); the same arguments give the same list.

    Raises ValueError for an unknown split, or where the generator has fewer items than asked for.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: one of {', '.join(SPLITS)}")
    return [item for _, item in zip(range(count), _unseen(make, split, seed), strict=False)]


def _unseen(make: Callable[[random.Random], tuple[str, dict]], split: str, seed: int) -> Iterator[dict]:
    rng = random.Random(f"{split}/{seed}")
    seen: set[str] = set()
    fruitless = 0
    while fruitless < MAX_FRUITLESS:
        key, item = make(rng)
        fruitless += 1
        if key not in seen and split_of(key) == split:
            seen.add(key)
            fruitless = 0
            yield item
    raise ValueError(f"no more than {len(seen)} different items of split {split!r} were found: ask for fewer")
