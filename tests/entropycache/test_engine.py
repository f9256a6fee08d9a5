"""The decoding loop: the shift, packing, independence, and what it refuses (cases D2, D4, D6-D8, D10)."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import FullRecompute
from entropycache import CachePolicy, Decoding, EntropyCache, Plan, generate, stream
from entropycache.kv_cache import KVCache
from tests.models import FAMILIES, random_model, random_prompt, random_spec

WINDOWS = [
    {"window": "blockwise", "block_length": 4},
    {"window": "blockwise", "block_length": 12},
    {"window": "sliding", "window_length": 5},
    {"window": "whole"},
]
RULES = [
    {"rule": "top_n"},
    {"rule": "top_n", "steps": 6},
    {"rule": "timestep", "steps": 9},
    {"rule": "threshold", "threshold": 0.5},
    {"rule": "factor", "factor": 0.8},
]
decodings = st.sampled_from(
    [Decoding(12, **window, **rule, temperature=t) for window in WINDOWS for rule in RULES for t in (0.0, 0.7)]
)


class Echo:
    """A stub model: the logits of row j put all mass on token 100 + j."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, family):
        self.spec = replace(random_spec(family), vocab=300, mask_id=299, eos_id=298, stop_ids=(298,), bos_id=None)
        self.computed = []

    def sources(self, predict):
        return (predict - self.spec.shift).clamp_min(0)

    def new_cache(self, rows):
        return KVCache(self.spec, rows, device=self.device, dtype=torch.float32)

    def forward_packed(self, steps):
        out = []
        for step in steps:
            self.computed.append(step.compute.tolist())
            sources = self.sources(step.predict)
            assert set(sources.tolist()) <= set(step.compute.tolist())
            logits = torch.zeros(len(sources), 300)
            logits[torch.arange(len(sources)), 100 + sources] = 50.0
            out.append(logits)
        return torch.cat(out)


@pytest.mark.parametrize(("family", "tokens"), [("dream", [109, 110, 111, 112]), ("llada", [110, 111, 112, 113])])
@pytest.mark.parametrize("policy", [FullRecompute(), EntropyCache(tau=9, k=0)], ids=["full", "partial"])
def test_tokens_are_read_from_the_row_that_the_family_reads(family, tokens, policy):  # D2
    out = generate(Echo(family), list(range(10)), policy, Decoding(4, window="sliding", window_length=2))
    assert out.tokens.tolist() == tokens


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12)
@given(seed=st.integers(0, 99), decoding=decodings, tau=st.sampled_from([0.3, 1.0, 2.0]), batch=st.integers(2, 4))
def test_packed_sequences_equal_each_alone(family, seed, decoding, tau, batch):  # D8, D10
    net = random_model(family, seed)
    prompts = [random_prompt(net, length, seed + length) for length in (5, 12, 1, 8)]
    policy = EntropyCache(tau, 3)
    alone = [generate(net, prompt, policy, decoding, seed=seed, trace=True) for prompt in prompts]
    packed = generate(net, prompts, policy, decoding, seed=seed, trace=True, batch_size=batch)
    for one, other in zip(alone, packed, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert [s.computed for s in one.steps] == [s.computed for s in other.steps]
        assert [s.committed for s in one.steps] == [s.committed for s in other.steps]
        assert (one.nfe, one.rows_computed, one.flops) == (other.nfe, other.rows_computed, other.flops)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20)
@given(seed=st.integers(0, 99), decoding=decodings)
def test_what_every_trace_holds(family, seed, decoding):  # D4, D7
    net = random_model(family, seed)
    out = generate(net, random_prompt(net, 7, seed), EntropyCache(0.8, 2), decoding, seed=seed, trace=True)
    committed = [row for step in out.steps for row in step.committed]
    assert sorted(committed) == list(range(7, 19)) and out.nfe == len(out.steps)
    assert net.spec.mask_id not in out.tokens.tolist()
    assert out.steps[0].refresh
    written = [token for step in out.steps for token in step.tokens]
    assert [out.tokens[row - 7].item() for row in committed] == written
    for step in out.steps:
        assert set(step.committed) <= set(step.predicted)
        assert set(net.sources(torch.tensor(step.predicted)).tolist()) <= set(step.computed)
        assert step.computed == (list(range(19)) if step.refresh else sorted(set(step.computed)))
        assert step.rows_written == net.spec.layers * len(step.computed)
    assert out.rows_computed == sum(len(step.computed) for step in out.steps)
    assert out.rows_total == 19 * out.nfe
    assert out.refreshes == sum(step.refresh for step in out.steps)


def test_a_tensor_a_list_and_a_list_of_prompts():
    net, decoding = random_model("llada"), Decoding(4, block_length=4)
    one = generate(net, [1, 2, 3], FullRecompute(), decoding)
    assert generate(net, torch.tensor([1, 2, 3]), FullRecompute(), decoding).tokens.equal(one.tokens)
    several = generate(net, [[1, 2, 3], torch.tensor([1, 2, 3])], FullRecompute(), decoding)
    assert [out.tokens.tolist() for out in several] == [one.tokens.tolist()] * 2
    assert generate(net, [[]], FullRecompute(), decoding)[0].prompt_length == 0
    assert one.steps == []


def test_short_sequences_are_handed_over_before_long_ones_are_done():
    net = random_model("llada")
    threshold = Decoding(12, block_length=12, rule="threshold", threshold=0.0)
    order = [index for index, _ in stream(net, [[1], [2], [3]], FullRecompute(), threshold, batch_size=2)]
    assert sorted(order) == [0, 1, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_stop_early_saves_steps_and_keeps_the_answer(family):  # D6
    net = random_model(family, 5)
    net.head.weight[net.spec.eos_id] *= 2
    saved = 0
    for seed in range(6):
        prompt = random_prompt(net, 6, seed)
        full, early = (
            generate(net, prompt, FullRecompute(), Decoding(16, block_length=4, eos=eos))
            for eos in ("decode_all", "stop_early")
        )
        tokens = full.tokens.tolist()
        end = next((i for i, token in enumerate(tokens) if token in net.spec.stop_ids), None)
        if end is None:
            assert early.nfe == full.nfe
            continue
        assert early.tokens.tolist()[: end + 1] == tokens[: end + 1]
        assert early.nfe <= full.nfe and net.spec.mask_id not in early.tokens.tolist()
        saved += full.nfe - early.nfe
    assert saved > 0


def test_a_prompt_that_does_not_fit_is_refused():
    net, decoding = random_model("llada"), Decoding(16, block_length=16)
    with pytest.raises(
        ValueError, match="prompt of 500 tokens .* = 516 rows exceed .* 512 positions; a prompt of 496 tokens would do"
    ):
        generate(net, [1] * 500, FullRecompute(), decoding)
    with pytest.raises(ValueError, match="token id 53 is outside the model's vocabulary 0..52"):
        generate(net, [53], FullRecompute(), decoding)
    with pytest.raises(ValueError, match="batch_size 0"):
        generate(net, [[1]], FullRecompute(), decoding, batch_size=0)


class Lazy(CachePolicy):
    """Never refreshes: what a broken policy would do."""

    def plan(self, state, predict):
        return Plan(predict, refresh=False)


def test_a_policy_that_does_not_begin_with_a_refresh_is_caught():
    with pytest.raises(AssertionError, match="the first plan must be a refresh"):
        generate(random_model("llada"), [1, 2], Lazy(), Decoding(4, block_length=4))


def test_the_configured_policy_is_never_touched():
    net, policy = random_model("llada"), EntropyCache(0.5, 3)
    generate(net, [[1, 2], [3]], policy, Decoding(4, block_length=4))
    assert vars(policy) == {"tau": 0.5, "k": 3, "refresh_on_new_window": False}
