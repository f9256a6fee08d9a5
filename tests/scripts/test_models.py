"""Models by name: every configuration names its source, and the model is asked in the form that it says."""

import json
import shutil

import pytest
import yaml

from entropycache.models import dream, llada
from entropycache.models.tokenizer import Tokenizer
from evaluation.benchmarks import load_task, requests
from tests.conftest import ROOT

FILES = sorted((ROOT / "conf" / "model").glob("*.yaml"))
BEGIN = {
    "llada": "<|startoftext|>",
    "dream": "<|endoftext|>",
}  # the small tokenizer of Dream's family has no BOS of its own


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_model_is_described_in_full_and_names_its_source(file):
    text = file.read_text()
    config = yaml.safe_load(text)
    assert config.keys() == {"name", "path", "revision", "dtype", "chat", "bos"} and config["name"] == file.stem
    head = text.partition("name:")[0]
    assert f"entropycache/assets/{config['path']}" in head or (config["path"] in head and "arXiv" in head)


@pytest.mark.parametrize(
    ("name", "family", "chat", "bos"),
    [
        ("llada_8b_instruct", "llada", True, True),
        ("llada_8b_base", "llada", False, False),
        ("llada_1_5", "llada", True, True),
        ("dream_7b_instruct", "dream", True, False),
        ("dream_7b_base", "dream", False, True),
        ("dream_coder_7b_instruct", "dream", True, False),
    ],
)
def test_a_model_is_asked_in_its_own_form(script, checkpoints, tmp_path, name, family, chat, bos):
    """Base models: the plain text of shots and question, BOS where their authors put one; the others: a user turn."""
    folder = tmp_path / name
    shutil.copytree(checkpoints[family], folder)
    tokenizer = Tokenizer(folder)
    begin = tokenizer.specials[BEGIN[family]]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": begin}))

    small = ["benchmark=mini_gsm8k", "benchmark.num_fewshot=1", "benchmark.gen_length=32", "limit=1"]
    stand_in = [f"model={name}", f"model.path={folder}", "model.dtype=float32", f"results={tmp_path}"]
    code, _, err = script("run.py", *stand_in, *small, "method=entropycache")
    assert code == 0, err
    (path,) = tmp_path.glob("runs/mini_gsm8k/*/*/*/samples.jsonl")
    sample = json.loads(path.read_text())

    form = {"llada": llada.CHAT_TEMPLATE, "dream": dream.CHAT_TEMPLATE}[family] if chat else "{content}"
    plain = requests(load_task("mini_gsm8k", num_fewshot=1), 1)[0].prompt_text
    assert plain.startswith("Question: ") and sample["prompt"] == form.replace("{content}", plain)
    ids = tokenizer.encode(sample["prompt"])
    assert sample["prompt_tokens"] == len(ids) + (bos and ids[0] != begin)
