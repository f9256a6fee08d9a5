"""Fast-dLLM: which rows are computed when, its two readings on shifted models, and the factor rule."""

from __future__ import annotations

import jaxtyping
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import FastDLLM, FullRecompute
from entropycache import Decoding, generate
from tests.models import FAMILIES, random_model, random_prompt


@given(
    family=st.sampled_from(FAMILIES),
    variant=st.sampled_from(("prefix", "dual")),
    reading=st.sampled_from(("block", "sources")),
    first_step=st.sampled_from(("rule", "one")),
    seed=st.integers(0, 50),
    prompt_length=st.integers(1, 9),
)
@settings(max_examples=20)
def test_the_rows_written_are_those_the_rule_names(family, variant, reading, first_step, seed, prompt_length):
    model = random_model(family, seed, layers=2)
    decoding = Decoding(gen_length=12, block_length=4, rule="threshold", threshold=0.6)
    policy = FastDLLM(variant, first_step=first_step, rows=reading)
    out = generate(model, random_prompt(model, prompt_length, seed), policy, decoding, trace=True)
    left = model.spec.shift if reading == "sources" else 0
    block = -1
    for step in out.steps:
        current = (step.committed[0] - prompt_length) // 4
        start = prompt_length + 4 * current
        assert step.refresh == (current != block)
        if step.refresh:
            assert step.computed == list(range(prompt_length + 12))
            if first_step == "one":
                assert step.committed == [start]
        else:
            end = prompt_length + 12 if variant == "prefix" else start + 4
            read = {row - model.spec.shift for row in step.predicted}  # the engine adds what is read
            assert set(step.computed) == set(range(start - left, end - left)) | read
        assert step.rows_written == 2 * len(step.computed)
        block = current


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", ["prefix", "dual"])
def test_one_block_over_the_whole_canvas(family, variant):
    """Prefix and dual are one: the prompt is computed once, the canvas in every step; without a prompt that is full
    recompute."""
    model = random_model(family, 7)
    decoding = Decoding(gen_length=11, window="whole")
    steps = generate(model, random_prompt(model, 6), FastDLLM(variant), decoding, trace=True).steps
    assert [step.refresh for step in steps] == [True] + [False] * 10
    for step in steps[1:]:
        assert set(range(6, 17)) <= set(step.computed) <= set(range(5, 17))
    ours = generate(model, [], FastDLLM(variant), decoding)
    assert ours.tokens.tolist() == generate(model, [], FullRecompute(), decoding).tokens.tolist()


def test_prefix_and_dual_agree_on_one_block():
    model = random_model("dream", 8)
    decoding = Decoding(gen_length=13, window="whole", rule="factor", factor=1.0)
    out = [generate(model, random_prompt(model, 7), FastDLLM(v), decoding, trace=True) for v in ("prefix", "dual")]
    assert out[0].tokens.tolist() == out[1].tokens.tolist()
    assert [step.computed for step in out[0].steps] == [step.computed for step in out[1].steps]


def test_factor_rule_decodes_several_tokens_a_step_and_at_least_one():
    model = random_model("llada", 9)
    prompt = random_prompt(model, 5)
    few, many = (
        generate(model, prompt, FastDLLM("dual"), Decoding(gen_length=16, block_length=8, rule="factor", factor=f))
        for f in (1e-9, 1.5)
    )
    assert few.nfe == 16
    assert many.nfe < 16


def test_a_sliding_window_is_refused():
    model = random_model("llada", 0)
    with pytest.raises(ValueError, match="does not work with window 'sliding'; blockwise or whole would do"):
        generate(model, [1, 2, 3], FastDLLM("dual"), Decoding(gen_length=8, window="sliding", window_length=4))


@pytest.fixture
def unchecked():
    """No run-time type checker, which would be before us."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_unknown_options_are_refused(unchecked):
    with pytest.raises(ValueError, match="variant 'both' is unknown; known: prefix, dual"):
        FastDLLM("both")
    with pytest.raises(ValueError, match="first_step 'two' is unknown"):
        FastDLLM("dual", first_step="two")
