"""A run's configuration, manifest and samples, and another process that writes one."""

import json
import subprocess
import sys
from pathlib import Path

from evaluation.store import RunStore

CONFIG = {
    "model": {"name": "tiny_llada", "revision": "abc", "dtype": "float32"},
    "method": {"name": "entropycache", "tau": 0.5, "k": 16},
    "decoding": {"window": "blockwise", "block_length": 32, "rule": "threshold", "threshold": 0.9},
    "benchmark": {"name": "mini_gsm8k", "data": "generated", "num_fewshot": 4},
    "device": "cpu",
    "seed": 0,
    "limit": 5,
    "results": "results",
}
MANIFEST = {"samples": 5, "device": "cpu", "dtype": "float32", "data_sha256": "d", "prompts_sha256": "p", "seed": 0}
FOREVER = 1_000_000


def sample(index, seconds=0.5):
    return {
        "id": f"mini_gsm8k/test/{index}",
        "index": index,
        "text": f"é\n\u2028 #### {index}",
        "tokens": [index, 2, 3],
        "seconds": seconds,
        "recompute_ratio": 0.1 + index / 3,
    }


def changed(key, value):
    """CONFIG with one dotted key set."""
    config = json.loads(json.dumps(CONFIG))
    *path, leaf = key.split(".")
    inner = config
    for part in path:
        inner = inner[part]
    inner[leaf] = value
    return config


def complete(root, config=CONFIG, count=5, **finish):
    with RunStore(root).open(config, MANIFEST | {"samples": count}) as run:
        for index in run.missing:
            run.append(sample(index))
        run.finish(**finish)
    return run


WRITER = """
import json, resource, sys
from evaluation import store
from evaluation.files import StoreError

store.code_version = lambda: "code"
root, config, manifest, limit = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
with store.RunStore(root).open(config, manifest) as run:
    print("open", flush=True)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        for index in run.missing:
            run.append({"id": str(index), "index": index, "text": "x" * 3000})
        run.finish()
    except StoreError as error:
        print(index, error)
"""


def writer(root, count, limit=0):
    """Another process that writes a run, in files of up to `limit` bytes; it has the run open when this returns."""
    arguments = [str(root), json.dumps(CONFIG), json.dumps(MANIFEST | {"samples": count}), str(limit)]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout.readline() == "open\n"
    return process
