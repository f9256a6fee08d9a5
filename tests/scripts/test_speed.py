"""Paired speed from the command line, and what it refuses to compare (cases D3, M2-M4)."""

import json
import time

import pytest

from baselines import FullRecompute
from entropycache import Decoding
from entropycache.models.transformer import Transformer
from evaluation.benchmarks import Request
from evaluation.comparison import IncomparableError
from evaluation.generate import Answerer
from evaluation.speed import SpeedRow, check_rows, measure, write_speed
from evaluation.store import RunStore
from tests.models import random_spec


def test_speed_is_paired_and_measured_once(script, small, tmp_path):
    arguments = [
        *(a for a in small if not a.startswith(("limit", "decoding"))),
        "prompts=3",
        "benchmark.gen_length=32",
        "benchmark.num_fewshot=0",
    ]
    code, out, err = script("speed.py", *arguments)
    assert code == 0, err
    (path,) = tmp_path.glob("runs/mini_gsm8k/tiny_llada/speed/*/speed.json")
    table = json.loads(path.read_text())
    assert table["reference"] == "full_recompute one_token" and len(table["prompts"]) == 3
    assert [row["label"] for row in table["rows"]] == [
        "full_recompute one_token",
        "full_recompute threshold",
        "entropycache threshold",
    ]
    for row in table["rows"]:
        assert all(len(row[column]) == 3 for column in ("seconds", "tokens", "nfe", "decision_seconds", "flops"))
        assert all(0 <= d < s for d, s in zip(row["decision_seconds"], row["seconds"], strict=True))
        assert sum(row["phase_seconds"].values()) == pytest.approx(sum(row["seconds"]))
    assert table["rows"][0]["nfe"] == [32] * 3
    orders = [sample["order"] for sample in map(json.loads, (path.parent / "samples.jsonl").read_text().splitlines())]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert len(table["warmup_seconds"]) == 3 and all(len(seconds) == 1 for seconds in table["warmup_seconds"])

    before = path.read_bytes()
    assert script("speed.py", *arguments)[:2] == (0, out)
    assert path.read_bytes() == before


def test_a_slow_first_call_is_kept_apart(tmp_path):  # M2
    config = {
        "method": {"name": "full_recompute"},
        "decoding": {"name": "d"},
        "model": {"name": "m"},
        "benchmark": {"name": "b"},
    }
    answerer = Answerer(SlowAtFirst(random_spec("llada")), Plain(), FullRecompute(), Decoding(2, "whole"), False, False)
    rows = [SpeedRow("full_recompute d", answerer, config)]
    asked = [Request(f"b/{i}", i, None, {}, "text", "", ()) for i in range(2)]
    with RunStore(tmp_path).open(config, {"samples": 2}) as run:
        measure(run, rows, asked, warmup=1)
        write_speed(run, rows)
        run.finish()
        table = json.loads((run.folder / "speed.json").read_text())
    assert table["warmup_seconds"][0][0] >= 0.3
    assert max(table["rows"][0]["seconds"]) < 0.3


class SlowAtFirst(Transformer):
    """A model whose first step takes 0.3 s more than any other."""

    calls = 0

    def forward_packed(self, steps):
        if not self.calls:
            time.sleep(0.3)
        self.calls += 1
        return super().forward_packed(steps)


class Plain:
    """A tokenizer of one prompt and one answer."""

    def encode(self, text):
        return [1, 2, 3]

    def decode(self, tokens):
        return ""


def row(method="full_recompute", decoding=None, **config):
    decoding = decoding or Decoding(32, block_length=32)
    settings = {"name": "d", "block_length": decoding.block_length, "steps": decoding.steps, "window": decoding.window}
    answerer = Answerer(None, None, FullRecompute(), decoding, chat=False, bos=False)  # type: ignore[arg-type]
    base = {"method": {"name": method}, "decoding": settings, "device": "cpu", "model": {"dtype": "float32"}}
    return SpeedRow(method, answerer, base | config)


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"device": "cuda"}, "device"),
        ({"model": {"dtype": "bfloat16"}}, "model.dtype"),
        ({"benchmark": {"num_fewshot": 5}}, "benchmark.num_fewshot"),
        ({"decoding": Decoding(32, block_length=16)}, "decoding.block_length"),
    ],
)
def test_rows_that_differ_in_more_than_the_method_are_refused(other, key):  # M4
    check_rows([row(), row("entropycache")])
    with pytest.raises(IncomparableError, match=key):
        check_rows([row(), row("entropycache", **other)])


def test_the_reference_is_full_recompute_with_one_token_a_step():  # D3
    with pytest.warns(UserWarning, match="32 tokens a step"):
        fast = Decoding(32, block_length=32, steps=1)
    for wrong in (row("entropycache"), row(decoding=fast)):
        with pytest.raises(ValueError, match="the reference must be full_recompute with one token a step"):
            check_rows([wrong])


def test_a_sliding_window_may_be_compared_with_the_reference():
    check_rows([row(), row("elastic_cache", decoding=Decoding(32, window="sliding", window_length=16))])
