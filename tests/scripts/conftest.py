"""The entry points, run in this process on random-weights checkpoints with the tokenizers that the package ships."""

import os
import runpy
import shutil
import sys
import warnings
from importlib import resources
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from entropycache.models.checkpoint import save_checkpoint
from entropycache.models.tokenizer import Tokenizer, special_tokens
from entropycache.models.transformer import Transformer
from tests.conftest import ROOT
from tests.models import random_spec, randomise

SMALL = [
    "benchmark=mini_gsm8k",
    "benchmark.gen_length=8",
    "decoding.block_length=4",
    "benchmark.num_fewshot=1",
    "limit=3",
]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """{family: folder} of two small random checkpoints with real tokenizers."""
    from dataclasses import replace

    made = {}
    for family, mask in (("llada", "<|mdm_mask|>"), ("dream", "<|mask|>")):
        assets = Path(str(resources.files("entropycache"))) / "assets" / f"tiny_{family}"
        special = special_tokens(assets)
        ids = {"mask_id": special[mask], "eos_id": special["<|endoftext|>"], "stop_ids": (special["<|endoftext|>"],)}
        spec = replace(random_spec(family), vocab=len(Tokenizer(assets)), max_positions=700, bos_id=None, **ids)
        folder = made[family] = tmp_path_factory.mktemp(family)
        save_checkpoint(randomise(Transformer(spec), 0), folder)
        for file in assets.iterdir():
            if file.name not in ("config.json", "model.safetensors") and file.is_file():
                shutil.copy(file, folder)
    return made


@pytest.fixture
def own_index(monkeypatch):
    """lm-eval's index without its own thousands of tasks, which take a while to read."""
    import lm_eval.tasks
    from lm_eval.tasks._index import TaskIndex

    build, theirs = TaskIndex.build, Path(lm_eval.tasks.__file__).parent
    kept = staticmethod(lambda paths, **options: build([path for path in paths if Path(path) != theirs], **options))
    monkeypatch.setattr(TaskIndex, "build", kept)


@pytest.fixture
def script(monkeypatch, capsys):
    """`script("run.py", *arguments) -> (exit code, stdout, stderr)`, in this process."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setenv("HYDRA_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", ""))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(name, *arguments):
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / name), *map(str, arguments)])
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def small(checkpoints, tmp_path):
    """Overrides for a run of seconds that writes below tmp_path."""
    return ["model=tiny_llada", f"model.path={checkpoints['llada']}", *SMALL, f"results={tmp_path}"]
