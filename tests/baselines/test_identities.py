"""What holds for every cached method, on random models of both families: identities with full recompute, and that a
sequence is the same alone, after another and beside others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Int
from torch import Tensor

from baselines import D2Cache, ElasticCache, FastDLLM, FullRecompute
from entropycache import CachePolicy, Decoding, EntropyCache, Plan, SequenceState, generate
from tests.models import FAMILIES, random_model, random_prompt

BLOCKS = Decoding(gen_length=12, block_length=4, rule="threshold", threshold=0.6)
SLIDING = Decoding(gen_length=12, window="sliding", window_length=5, rule="threshold", threshold=0.6)
CERTAINTY = Decoding(gen_length=12, window="whole", certainty_sigma=3.0)

METHODS: dict[str, tuple[Callable[[], CachePolicy], Decoding]] = {
    "entropycache": (lambda: EntropyCache(tau=1.0, k=3), BLOCKS),
    "prefix": (lambda: FastDLLM("prefix"), BLOCKS),
    "dual": (lambda: FastDLLM("dual"), BLOCKS),
    "dual, sources": (lambda: FastDLLM("dual", rows="sources"), BLOCKS),
    "dual, first row": (lambda: FastDLLM("dual", first_step="one"), BLOCKS),
    "d2cache": (lambda: D2Cache(0.1, current_k=4, sigma=3.0), CERTAINTY),
    "d2cache, blocks": (lambda: D2Cache(0.3, current_k=3, sigma=3.0, inflate_w=3), BLOCKS),
    "d2cache, published": (lambda: D2Cache(0.1, current_k=4, sigma=3.0, as_published=True), BLOCKS),
    "elastic_cache": (lambda: ElasticCache(gamma=0.97, tracked=2), SLIDING),
}
# The block's first row is committed whatever its confidence: not what full recompute does under the same rule.
OWN_COMMITS = {"dual, first row"}

examples = given(family=st.sampled_from(FAMILIES), seed=st.integers(0, 1000), prompt_length=st.integers(1, 11))
# enough for models and prompts beyond the simplest, which hypothesis tries first
several = settings(max_examples=5)


def forced_to_refresh(policy: CachePolicy) -> CachePolicy:
    """The same policy, but every step computes every row; what it reads and decides otherwise stays its own."""

    class Forced(type(policy)):  # type: ignore[misc]
        def plan(self, state: SequenceState, predict: Int[Tensor, " p"]) -> Plan:
            plan = super().plan(state, predict)
            self.compute = state.all_rows
            if plan.predict is not None:  # d2Cache reads every masked row that was computed
                self.read = state.masked_rows(state.prompt_length, state.length)
                return Plan(state.all_rows, refresh=True, predict=self.read)
            return Plan(state.all_rows, refresh=True)

    policy.__class__ = Forced
    return policy


def canvas(model, prompt, policy, decoding, **options) -> list[int]:
    return generate(model, prompt, policy, decoding, **options).tokens.tolist()


@pytest.mark.parametrize("name", [name for name in METHODS if name not in OWN_COMMITS])
@examples
@several
def test_forced_to_refresh_it_is_full_recompute(name, family, seed, prompt_length):
    model = random_model(family, seed)
    make, decoding = METHODS[name]
    prompt = random_prompt(model, prompt_length, seed)
    assert canvas(model, prompt, forced_to_refresh(make()), decoding) == canvas(
        model, prompt, FullRecompute(), decoding
    )


@examples
@several
def test_d2cache_with_everything_selected_is_full_recompute(family, seed, prompt_length):
    """The last prompt row of a shifted model is left out once the first canvas row is known, whatever the rollout
    says; inflation closes that gap, between two rows."""
    model = random_model(family, seed)
    prompt = random_prompt(model, prompt_length + model.spec.shift, seed)
    everything = D2Cache(rollout_p=1.0, current_k=12, inflate_w=2 * model.spec.shift)
    for decoding in (BLOCKS, CERTAINTY):
        out = generate(model, prompt, everything, decoding, trace=True)
        assert all(len(step.computed) == len(prompt) + 12 for step in out.steps)
        assert out.tokens.tolist() == canvas(model, prompt, FullRecompute(), decoding)


@pytest.mark.parametrize("name", METHODS)
@examples
@several
def test_packed_sequences_are_each_alone(name, family, seed, prompt_length):
    model = random_model(family, seed)
    make, decoding = METHODS[name]
    prompts = [random_prompt(model, n, seed + n) for n in (prompt_length, 3, 12)]
    packed = generate(model, prompts, make(), decoding, batch_size=2, trace=True)
    for prompt, beside in zip(prompts, packed, strict=True):
        alone = generate(model, prompt, make(), decoding, trace=True)
        assert beside.tokens.tolist() == alone.tokens.tolist()
        assert [(s.computed, s.committed, s.rows_written) for s in beside.steps] == [
            (s.computed, s.committed, s.rows_written) for s in alone.steps
        ]


@pytest.mark.parametrize("name", METHODS)
def test_a_sequence_after_another_is_as_alone(name):
    """One policy object, one model: nothing of the first sequence is left."""
    model = random_model("dream", 11)
    make, decoding = METHODS[name]
    policy = make()
    first, second = random_prompt(model, 9, 1), random_prompt(model, 6, 2)
    alone = generate(model, second, make(), decoding, trace=True)
    canvas(model, first, policy, decoding)
    again = generate(model, second, policy, decoding, trace=True)
    both = generate(model, [first, second], policy, decoding, batch_size=1, trace=True)[1]
    for out in (again, both):
        assert out.tokens.tolist() == alone.tokens.tolist()
        assert [step.computed for step in out.steps] == [step.computed for step in alone.steps]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_canvas_is_finished_and_the_rows_are_counted(name, family):
    """In float32, with a mask token in the prompt as context."""
    model = random_model(family, 17, torch.float32)
    make, decoding = METHODS[name]
    prompt = [*random_prompt(model, 7), model.spec.mask_id]
    out = generate(model, prompt, make(), decoding, trace=True)
    assert model.spec.mask_id not in out.tokens.tolist()
    assert sorted(row for step in out.steps for row in step.committed) == list(range(8, 20))
    written = [step.rows_written for step in out.steps]
    assert out.rows_computed == pytest.approx(sum(written) / model.spec.layers)
    if name != "elastic_cache":
        assert written == [len(step.computed) * model.spec.layers for step in out.steps]
