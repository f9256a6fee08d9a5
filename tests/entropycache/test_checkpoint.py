"""Checkpoints: both formats read and written, and every way they can be wrong named in one line."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import metadata, resources
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from entropycache import load_model
from entropycache.models.checkpoint import CheckpointError, resolve, save_checkpoint
from entropycache.models.tokenizer import Tokenizer
from entropycache.models.transformer import Transformer
from tests.baselines.golden import GOLDENS
from tests.models import FAMILIES, random_model, random_spec

LLADA, DREAM = GOLDENS / "checkpoints" / "llada-tiny", GOLDENS / "checkpoints" / "dream-tiny"


@pytest.fixture
def copy(tmp_path):
    def made(source):
        shutil.copytree(source, tmp_path / source.name)
        return tmp_path / source.name

    return made


def edit(path, change):
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def rewrite(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_is_loaded_back(family, tmp_path):
    net = random_model(family, 1, torch.float32)
    save_checkpoint(net, tmp_path)
    again = load_model(tmp_path)
    assert again.spec.family == family and again.spec.kv_heads == net.spec.kv_heads
    ids = torch.tensor([1, 2, 3])
    torch.testing.assert_close(again.forward_full(ids), net.forward_full(ids), rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_shards_and_dtype():
    net = load_model(DREAM, dtype=torch.float64)
    assert net.dtype == torch.float64 and net.spec.qkv_bias
    shard = load_file(DREAM / "model-00001-of-00002.safetensors")
    expected = shard["model.layers.0.self_attn.k_proj.weight"].double()
    first, second = expected.view(2, 2, 8, 64).unbind(dim=1)  # halves of each head's rows on disk, pairs in the model
    pairs = torch.stack([first, second], dim=2).flatten(0, 2)
    torch.testing.assert_close(net.layers[0].qkv.weight[64:96], pairs, rtol=0, atol=0)


def test_however_small_the_pieces_that_are_read(monkeypatch):
    whole = load_model(DREAM).state_dict()
    monkeypatch.setattr("entropycache.models.checkpoint.PIECE_BYTES", 1)
    for name, parameter in load_model(DREAM).state_dict().items():
        assert torch.equal(parameter, whole[name])


def test_tied_embeddings_have_no_head_on_disk(copy, tmp_path):
    folder = copy(LLADA)
    edit(folder / "config.json", lambda config: config.update(weight_tying=True))
    with pytest.raises(CheckpointError, match=r"stray: model.transformer.ff_out.weight\)"):
        load_model(folder)
    rewrite(folder / "model.safetensors", lambda tensors: tensors.pop("model.transformer.ff_out.weight"))
    net = load_model(folder)
    assert net.head.weight is net.embed.weight


def test_wrong_tensors_are_all_named(copy):
    folder = copy(LLADA)

    def spoil(tensors):
        del tensors["model.transformer.blocks.1.q_proj.weight"], tensors["model.transformer.ln_f.weight"]
        tensors["lora.weight"] = torch.zeros(2)
        tensors["model.transformer.blocks.0.ff_out.weight"] = torch.zeros(64, 159)

    rewrite(folder / "model.safetensors", spoil)
    with pytest.raises(CheckpointError) as error:
        load_model(folder)
    message = str(error.value)
    assert "missing: model.transformer.ln_f.weight, model.transformer.blocks.1.q_proj.weight" in message
    assert "stray: lora.weight" in message
    assert "mis-shaped: model.transformer.blocks.0.ff_out.weight [64, 159] instead of [64, 160]" in message
    assert "\n" not in message


@pytest.mark.parametrize("kept", [0, 7, 100, 20_000])
def test_a_truncated_file_is_named(copy, kept):
    folder = copy(LLADA)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="model.safetensors: damaged or truncated .*; download it again"):
        load_model(folder)


def test_a_missing_shard_is_named(copy):
    folder = copy(DREAM)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="missing shard model-00002-of-00002.safetensors"):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; known types: llada, Dream"),
        ({"alibi": True}, "alibi = True is not supported; the shared transformer implies False"),
        ({"n_heads": 7}, "64, 7 heads"),
        ({"mask_token_id": 512}, "mask_id 512 is outside the vocabulary of 512"),
    ],
)
def test_a_config_that_the_transformer_would_get_wrong_is_refused(copy, change, message):
    folder = copy(LLADA)
    edit(folder / "config.json", lambda config: config.update(change))
    with pytest.raises(ValueError, match=message):
        load_model(folder)


def test_no_code_from_a_checkpoint_is_run(copy):
    folder = copy(DREAM)
    (folder / "modeling_dream.py").write_text("raise SystemExit('run')")
    (folder / "configuration_dream.py").write_text("raise SystemExit('run')")
    assert load_model(folder).spec.family == "dream"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_loading_peaks_at_about_the_weights_size(tmp_path):
    spec = replace(random_spec("llada"), hidden=240, heads=3, intermediate=480, vocab=100_000)
    save_checkpoint(Transformer(spec), tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    code = f"""
import torch
from entropycache import load_model
from entropycache.recorder import PeakMemory
memory = PeakMemory(torch.device("cpu"))
load_model({str(LLADA)!r})  # what torch loads on first use is not the checkpoint's
memory.reset()
before = memory.read()
model = load_model({str(tmp_path)!r})
print((memory.read() - before) / {size})
"""
    ratio = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert size > 180e6 and 0.9 <= ratio <= 1.15


def test_what_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"config.json: missing"):
        load_model(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere: no such folder, and neither a shipped checkpoint nor a hub id"):
        load_model("nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_model(tmp_path)
    shutil.copy(LLADA / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match="neither model.safetensors nor model.safetensors.index.json"):
        load_model(tmp_path)


def test_a_path_with_hydras_special_characters_is_a_path(tmp_path):  # R7
    folder = tmp_path / "step=300,v2" / "(a)#1%"
    folder.mkdir(parents=True)
    assert resolve(folder) == folder


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_an_unsupported_version_is_refused_before_weights_are_read(package, monkeypatch, tmp_path):  # R8
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.9" if name == package else {"torch": "2.6"}.get(name, "5.1")
    )
    with pytest.raises(RuntimeError, match=f"{package} 0.9 is not supported: install {package}>="):
        load_model(tmp_path / "not even there")


@pytest.mark.parametrize("name", ["tiny_llada", "tiny_dream"])
def test_tokenizers_of_both_families(name):
    tokenizer = Tokenizer(Path(str(resources.files("entropycache"))) / "assets" / name)
    text = "Question: Ann has 12 pens.\nAnswer: 12*3=36\n#### 36 é 你好  <two  spaces>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    digits = [tokenizer.encode(digit) for digit in "0123456789"]
    assert all(len(digit) == 1 for digit in digits)
    assert tokenizer.encode("2026") == [digits[2][0], digits[0][0], digits[2][0], digits[6][0]]
    end = "<|endoftext|>"
    marked = tokenizer.encode(f"a{end}b")
    assert marked.count(tokenizer.specials[end]) == 1
    assert tokenizer.decode(marked) == "ab"
    assert len(tokenizer) == 1 + max(tokenizer.specials.values())
