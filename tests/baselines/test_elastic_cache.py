"""Elastic-Cache against its literal reference, and the identities of gamma."""

from __future__ import annotations

import random

import pytest
import torch

from baselines import ElasticCache
from baselines.elastic_cache import ElasticModel
from entropycache import Decoding, generate
from tests.baselines.literal_elastic_cache import literal
from tests.models import FAMILIES, random_model, random_prompt


def case(index: int):
    """One of fifty random cases: family, depth, sizes, window, thresholds."""
    draw = random.Random(index)
    family = FAMILIES[index % 2]
    model = random_model(family, index, layers=draw.choice((2, 3, 5)), head_dim=4, vocab=31)
    decoding = Decoding(
        gen_length=draw.choice((7, 11)),
        window="sliding",
        window_length=draw.choice((1, 3, 5)),
        rule="threshold",
        threshold=draw.choice((0.5, 0.9)),
    )
    gamma = draw.choice((-1.0, 0.5, 0.9, 0.97, 0.99, 0.999, 2.0))
    return model, random_prompt(model, draw.randrange(1, 13), index), decoding, gamma, draw.choice((1, 1, 2, 3, 30))


def rows_per_layer(step, layers: int, total: int) -> list[list[int]]:
    """What a step's record says was computed: every layer the plan's rows, from the one that widened all of them.

    The record counts the rows of all layers, and a layer that widens tells from how many."""
    partial = step.computed
    if len(partial) == total:
        return [partial] * layers
    wide, rest = divmod(step.rows_written - layers * len(partial), total - len(partial))
    assert rest == 0
    return [partial] * (layers - wide) + [list(range(total))] * wide


@pytest.mark.parametrize("index", range(50))
def test_agrees_with_the_literal_reference_token_for_token_and_row_for_row(index):
    model, prompt, decoding, gamma, tracked = case(index)
    out = generate(model, prompt, ElasticCache(gamma, tracked), decoding, trace=True)
    tokens, history = literal(model, prompt, decoding, gamma, tracked)
    total = len(prompt) + decoding.gen_length
    assert out.tokens.tolist() == tokens
    assert [rows_per_layer(step, model.spec.layers, total) for step in out.steps] == history


def test_the_fifty_cases_widen_at_every_depth():
    """The comparison above would be empty if no layer or every layer widened in all of the cases."""
    seen = set()
    for index in range(50):
        model, prompt, decoding, gamma, tracked = case(index)
        total, layers = len(prompt) + decoding.gen_length, model.spec.layers
        if layers < 5:
            continue
        for step in generate(model, prompt, ElasticCache(gamma, tracked), decoding, trace=True).steps[1:]:
            if len(step.computed) < total:
                seen.add(sum(len(rows) == total for rows in rows_per_layer(step, layers, total)))
    assert seen == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("family", FAMILIES)
def test_gamma_minus_one_never_widens_and_above_one_widens_from_the_second_layer(family):
    model = random_model(family, 3, layers=4)
    prompt = random_prompt(model, 7)
    decoding = Decoding(gen_length=13, window="sliding", window_length=5, rule="threshold", threshold=0.6)
    total = 20
    for step in generate(model, prompt, ElasticCache(-1), decoding, trace=True).steps[1:]:
        assert step.rows_written == 4 * len(step.computed) < 4 * total
    for step in generate(model, prompt, ElasticCache(1.01), decoding, trace=True).steps[1:]:
        assert step.rows_written == len(step.computed) + 3 * total


def test_the_first_step_is_full_recompute_and_only_what_the_rule_names_follows():
    model = random_model("llada", 1)
    decoding = Decoding(gen_length=12, window="sliding", window_length=4, rule="threshold", threshold=0.9)
    steps = generate(model, random_prompt(model, 9), ElasticCache(-1, tracked=1), decoding, trace=True).steps
    assert steps[0].refresh and steps[0].computed == list(range(21))
    for before, step in zip(steps, steps[1:], strict=False):
        assert not step.refresh
        assert set(before.committed) | set(step.predicted) <= set(step.computed)
        assert len(step.computed) <= len(step.predicted) + len(before.committed) + model.spec.layers


def test_an_empty_prompt_has_nothing_to_compare_at_first():
    model = random_model("llada", 2)
    decoding = Decoding(gen_length=8, window="sliding", window_length=3)
    steps = generate(model, [], ElasticCache(0.999), decoding, trace=True).steps
    assert steps[1].rows_written == model.spec.layers * len(steps[1].computed)


def test_head_over_all_rows_gives_the_same_tokens():
    model = random_model("dream", 5)
    decoding = Decoding(gen_length=12, window="sliding", window_length=4, rule="threshold", threshold=0.9)
    prompts = [random_prompt(model, n, n) for n in (5, 9)]
    some = generate(model, prompts, ElasticCache(0.97), decoding)
    every = generate(model, prompts, ElasticCache(0.97), decoding, predict_all=True)
    assert [out.tokens.tolist() for out in some] == [out.tokens.tolist() for out in every]


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="tracked 0 must be a whole number"):
        ElasticCache(tracked=0)
    with pytest.raises(ValueError, match="gamma -2 must be -1"):
        ElasticCache(gamma=-2)


def test_the_wrapper_equals_the_plain_transformer_where_nothing_widens():
    model = random_model("dream", 6, torch.float32)
    prompt = random_prompt(model, 6)
    decoding = Decoding(gen_length=10, window="sliding", window_length=4)
    assert isinstance(ElasticCache().wrap(model), ElasticModel)

    class Unwrapped(ElasticCache):
        def wrap(self, model):
            return model

    ours = generate(model, prompt, ElasticCache(-1), decoding, trace=True)
    plain = generate(model, prompt, Unwrapped(-1), decoding, trace=True)
    assert ours.tokens.tolist() == plain.tokens.tolist()
    assert [step.computed for step in ours.steps] == [step.computed for step in plain.steps]
