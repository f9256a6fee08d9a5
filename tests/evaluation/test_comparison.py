"""Case M4: runs that differ in more than the method are not compared."""

import copy

import pytest

from evaluation.comparison import IncomparableError, comparable, differences

RUN = {
    "model": {"name": "tiny_llada", "revision": "abc"},
    "method": {"name": "full_recompute"},
    "decoding": {"window": "blockwise", "block_length": 32, "rule": "threshold", "threshold": 0.9, "temperature": 0.0},
    "benchmark": {"name": "gsm8k", "num_fewshot": 4},
    "dtype": "float32",
    "device": "cpu",
    "attention": "math",
}


def changed(key, value):
    run = copy.deepcopy(RUN)
    *path, leaf = key.split(".")
    inner = run
    for part in path:
        inner = inner[part]
    inner[leaf] = value
    return run


@pytest.mark.parametrize(
    "key, value",
    [
        ("decoding.block_length", 64),
        ("decoding.temperature", 0.2),
        ("benchmark.num_fewshot", 5),
        ("dtype", "bfloat16"),
        ("attention", "flash"),
        ("device", "cuda"),
        ("model.revision", "def"),
        ("seed", 1),  # set on one side alone
    ],
)
def test_a_difference_beside_the_method_is_refused_by_name(key, value):
    other = changed(key, value) | {"method": {"name": "entropycache", "tau": 0.5}}
    for pair in ((RUN, other), (other, RUN)):
        with pytest.raises(IncomparableError, match=key) as refusal:
            comparable(*pair)
        assert repr(value) in str(refusal.value)
        assert "method" not in str(refusal.value)


def test_the_method_is_free_with_all_its_settings():
    comparable(RUN, RUN | {"method": {"name": "entropycache", "tau": 0.5, "k": 16}})


def test_the_reference_decoding_is_freed_by_name():
    other = changed("decoding.rule", "top_n")
    comparable(RUN, other, free=("method", "decoding.rule"))
    comparable(RUN, other, free=("method", "decoding"))
    with pytest.raises(IncomparableError, match="decoding.rule"):
        comparable(RUN, other, free=("method", "decoding.ru"))


def test_every_difference_is_named():
    assert differences(RUN, changed("decoding.block_length", 64) | {"device": "cuda"}) == {
        "decoding.block_length": (32, 64),
        "device": ("cpu", "cuda"),
    }


def test_an_empty_group_is_not_the_same_as_none():
    assert differences({"method": {}}, {}) == {"method": ({}, "(not set)")}
