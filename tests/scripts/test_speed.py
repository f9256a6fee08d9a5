"""Paired speed from the command line, and what it refuses to compare (cases D3, M2-M4)."""

import json

import pytest

from baselines import FullRecompute
from entropycache import Decoding
from evaluation.comparison import IncomparableError
from evaluation.generate import Answerer
from evaluation.speed import SpeedRow, check_rows


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
