"""EntropyCache against its rule, written out a second time from the trace (case D9), and its identities."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import FullRecompute
from entropycache import Commit, Decoding, EntropyCache, SequenceState, generate
from entropycache.decoding import token_entropy
from tests.entropycache.test_engine import decodings
from tests.models import FAMILIES, random_model, random_prompt


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(seed=st.integers(0, 99), decoding=decodings, k=st.integers(0, 9), length=st.integers(1, 9))
def test_tau_minus_one_is_full_recompute(family, seed, decoding, k, length):  # D9
    net = random_model(family, seed)
    prompt = random_prompt(net, length, seed)
    reference = generate(net, prompt, FullRecompute(), decoding, seed=seed, trace=True)
    out = generate(net, prompt, EntropyCache(-1, k), decoding, seed=seed, trace=True)
    assert out.tokens.tolist() == reference.tokens.tolist()
    assert [step.committed for step in out.steps] == [step.committed for step in reference.steps]
    assert out.refreshes == out.nfe and out.rows_computed == out.rows_total


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 99),
    decoding=decodings,
    k=st.sampled_from([0, 1, 2, 5, 99]),
    tau=st.sampled_from([0.3, 0.8, 1.5, math.inf]),
    new_window=st.booleans(),
)
def test_the_rows_computed_are_those_that_the_rule_names(family, seed, decoding, k, tau, new_window):
    net = random_model(family, seed)
    prompt = random_prompt(net, 7, seed)
    out = generate(net, prompt, EntropyCache(tau, k, new_window), decoding, seed=seed, trace=True)
    entropies = entropies_of(net, prompt, out)
    history, refresh, window = [], True, set()
    for step, entropy in zip(out.steps, entropies, strict=True):
        refresh = refresh or (new_window and not window & set(step.predicted))
        sources = net.sources(torch.tensor(step.predicted)).tolist()
        assert step.refresh == refresh
        assert step.computed == (list(range(19)) if refresh else sorted({*step.predicted, *history[:k], *sources}))
        assert step.entropy == (pytest.approx(max(entropy.values()), rel=1e-9) if entropy else None)
        history = sorted(entropy, key=lambda row, of=entropy: (-of[row], row)) + history
        refresh, window = any(e > tau for e in entropy.values()), set(step.predicted)
    assert tau < math.inf or new_window or out.refreshes == 1


def entropies_of(net, prompt, out):
    """{row: entropy} of each step's commits, from a second decoding that computes the same rows."""
    tokens = torch.tensor(prompt + [net.spec.mask_id] * len(out.tokens))
    cache = net.new_cache(len(tokens))
    found = []
    for step in out.steps:
        predict = torch.tensor(step.predicted)
        logits = net.forward(tokens, torch.tensor(step.computed), predict, cache)
        entropy = dict(zip(step.predicted, token_entropy(logits).tolist(), strict=True))
        found.append({row: entropy[row] for row in step.committed})
        tokens[step.committed] = torch.tensor(step.tokens, dtype=torch.long)
    return found


def started(tau, k):
    policy = EntropyCache(tau, k)
    state = SequenceState.start(torch.tensor([1, 2]), 6, mask_id=9)
    policy.start(random_model("llada"), state)
    return policy, state


def commit_of(rows, entropy):
    return Commit(
        torch.tensor(rows), torch.zeros(len(rows), dtype=torch.long), torch.ones(len(rows)), torch.tensor(entropy)
    )


def planned(policy, state, rows, entropy, predict):
    policy.observe(state, commit_of(rows, entropy))
    plan = policy.plan(state, torch.tensor(predict))
    return "refresh" if plan.refresh else sorted(plan.compute.tolist())


def test_exactly_tau_does_not_refresh():  # D9
    policy, state = started(tau=0.5, k=1)
    assert policy.plan(state, torch.tensor([2])).refresh
    assert planned(policy, state, [3, 4], [0.5, 0.25], [2]) == [2, 3]
    assert planned(policy, state, [2], [0.5000001], [5]) == "refresh"
    assert planned(policy, state, [5], [0.0], [6]) == [5, 6]


def test_an_entropy_of_zero_is_below_tau_zero_and_above_minus_one():  # D9
    assert planned(*started(0.0, 0), [3], [0.0], [2]) == [2]
    assert planned(*started(-1, 0), [3], [0.0], [2]) == "refresh"


def test_history_is_newest_first_then_by_entropy_then_by_row():
    policy, state = started(tau=9, k=3)
    policy.observe(state, commit_of([2], [0.9]))
    assert planned(policy, state, [3, 4, 5], [0.1, 0.3, 0.3], [7]) == [3, 4, 5, 7]
    assert policy.recent.tolist() == [4, 5, 3]
    assert planned(policy, state, [6], [0.0], [7]) == [4, 5, 6, 7]


def test_k_beyond_the_history_takes_all_of_it_and_never_a_prompt_row():  # D9
    assert planned(*started(9, 100), [4], [0.2], [6]) == [4, 6]
    net = random_model("llada")
    out = generate(net, [1, 2, 3], EntropyCache(math.inf, 100), Decoding(6, "whole"), trace=True)
    assert all(min(step.computed) >= 3 for step in out.steps[1:])


@pytest.mark.parametrize(
    ("arguments", "message"), [((-2, 4), "tau -2 must be"), ((math.nan, 4), "tau nan must be"), ((1, -1), "k -1 must")]
)
def test_settings_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        EntropyCache(*arguments)


def test_state_kept_per_step_is_one_flag_and_at_most_k_rows():
    policy, state = started(tau=9, k=4)
    for step in range(50):
        policy.observe(state, commit_of([step, step + 1, step + 2], [0.1, 0.2, 0.3]))
        assert policy.recent.numel() <= 4
