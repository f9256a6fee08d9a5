"""d2Cache's selections: the recorded function-level cases, the algebra of the rollout, and what may be committed."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import D2Cache
from baselines.d2cache import inflate, nucleus, rollout_importance
from entropycache import Decoding, generate
from tests.baselines.golden import GOLDENS
from tests.models import FAMILIES, random_model, random_prompt

UNITS = json.loads((GOLDENS / "units.json").read_text())


def rollout_by_products(attention, rows, total):
    """The definition: R <- rownorm(A + I)·R, one square matrix product a layer."""
    rollout = torch.eye(total, dtype=torch.float64)
    for weights in attention:
        layer = torch.eye(total, dtype=torch.float64)
        layer[rows] = weights
        layer += torch.eye(total, dtype=torch.float64)
        rollout = layer / layer.sum(dim=1, keepdim=True) @ rollout
    return rollout.sum(dim=0)


@pytest.mark.parametrize("case", UNITS["attention_rollout"])
def test_importance_as_recorded(case):
    heads = torch.tensor(case["layer_head_attn"], dtype=torch.float64)
    rows = torch.tensor(case["query_positions"])
    importance = rollout_importance([layer.mean(dim=0) for layer in heads], rows)
    torch.testing.assert_close(importance, torch.tensor(case["importance"], dtype=torch.float64), rtol=0, atol=1e-12)


@given(seed=st.integers(0, 10**6), total=st.integers(1, 23), layers=st.integers(1, 5))
def test_importance_without_square_products_is_the_same(seed, total, layers):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, total + 1, (), generator=generator))
    rows = torch.randperm(total, generator=generator)[:count].sort().values
    attention = [
        torch.randn(count, total, generator=generator, dtype=torch.float64).mul(3).softmax(1) for _ in range(layers)
    ]
    expected = rollout_by_products(attention, rows, total)
    torch.testing.assert_close(rollout_importance(attention, rows), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", UNITS["nucleus_select"])
def test_nucleus_as_recorded(case):
    free = torch.tensor(case["mask"], dtype=torch.bool)
    chosen = torch.zeros_like(free)
    chosen[nucleus(torch.tensor(case["scores"], dtype=torch.float64), free, case["top_p"])] = True
    assert chosen.int().tolist() == case["selected"]


def test_the_rollout_of_a_refresh_is_the_product_of_its_layers():
    """R <- rownorm(A + I) R from the first layer to the last, here by definition."""
    maps = torch.rand(4, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).softmax(-1)
    policy = D2Cache()
    policy.rollout = None
    product = torch.eye(9, dtype=torch.float64)
    for layer, weights in enumerate(maps):
        policy.watch(layer, weights)
        residual = weights + torch.eye(9, dtype=torch.float64)
        product = residual / residual.sum(dim=-1, keepdim=True) @ product
    assert policy.rollout is not None
    torch.testing.assert_close(policy.rollout, product)


def test_nucleus_takes_all_at_share_one_and_nothing_from_nothing():
    score = torch.rand(17, generator=torch.Generator().manual_seed(0))
    assert len(nucleus(score, torch.ones(17, dtype=torch.bool), 1.0)) == 17
    assert len(nucleus(score, torch.zeros(17, dtype=torch.bool), 0.5)) == 0


@pytest.mark.parametrize(
    ("rows", "width", "filled"),
    [
        ([1, 4, 9], 3, [1, 2, 3, 4, 9]),
        ([1, 4, 9], 2, [1, 4, 9]),
        ([0, 2, 4, 11], 2, [0, 1, 2, 3, 4, 11]),
        ([5], 4, [5]),
        ([], 4, []),
        ([0, 11], 11, list(range(12))),
    ],
)
def test_inflation_fills_between_close_rows_only(rows, width, filled):
    taken = torch.zeros(12, dtype=torch.bool)
    taken[rows] = True
    assert inflate(taken, width).nonzero().flatten().tolist() == filled


@given(
    family=st.sampled_from(FAMILIES),
    seed=st.integers(0, 50),
    prompt_length=st.integers(1, 9),
    current_k=st.sampled_from((1, 2, 5)),
    block=st.sampled_from((2, 4, 12)),
)
@settings(max_examples=12)
def test_only_rows_of_the_block_whose_source_was_computed_are_committed(family, seed, prompt_length, current_k, block):
    """Holds, and every canvas is finished, even where one row is chosen a step, in a block's first step too."""
    model = random_model(family, seed, layers=2)
    decoding = Decoding(gen_length=12, block_length=block)
    steps = generate(
        model, random_prompt(model, prompt_length, seed), D2Cache(0.0, current_k), decoding, trace=True
    ).steps
    assert len(steps) == 12
    committed: set[int] = set()
    for step in steps:
        sources = model.sources(torch.tensor(step.committed)).tolist()
        first_open = next(row for row in range(prompt_length, prompt_length + 12) if row not in committed)
        block_of = (first_open - prompt_length) // block
        assert set(sources) <= set(step.computed)
        assert all((row - prompt_length) // block == block_of for row in step.committed)
        assert set(step.committed) <= set(step.predicted)
        committed |= set(step.committed)


def test_masks_beyond_the_block_are_read_but_wait():
    """Their confidence ranks them; the block's rows alone are up."""
    model = random_model("llada", 0)
    decoding = Decoding(gen_length=12, block_length=4)
    first = generate(model, random_prompt(model, 5), D2Cache(), decoding, trace=True).steps[0]
    assert first.predicted == list(range(5, 17))
    assert set(first.committed) <= set(range(5, 9))


def test_published_and_intended_behaviour_are_two_settings():
    model = random_model("llada", 4)
    decoding = Decoding(gen_length=24, block_length=8)
    prompt = random_prompt(model, 11)
    rows = [
        [step.computed for step in generate(model, prompt, D2Cache(0.1, 5, as_published=p), decoding, trace=True).steps]
        for p in (False, True)
    ]
    assert rows[0] != rows[1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"rollout_p": 1.5}, "rollout_p 1.5 must be a share"),
        ({"current_k": 0}, "current_k 0 must be a whole number of rows, 1"),
        ({"sigma": 0.0}, "sigma 0.0 must be a number of rows above 0"),
        ({"inflate_w": -1}, "inflate_w -1 must be a whole number of rows, 0"),
    ],
)
def test_bad_settings_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        D2Cache(**setting)
