"""The forward passes: against the references' logits, partial against full, packed against alone."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from entropycache.models.attention import attention, attention_weights, weigh
from entropycache.models.transformer import StepInput
from tests.baselines.golden import GOLDENS, model
from tests.models import FAMILIES, random_model, random_prompt

CASES = json.loads((GOLDENS / "forward.json").read_text())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']}-{case['case']}")
def test_logits_are_those_of_the_references(case, dtype, tolerance):
    references = load_file(GOLDENS / "forward.safetensors")[case["logits"]]
    for row, ids in enumerate(case["input_ids"]):
        mask = case["attention_mask"][row] if case["attention_mask"] else [1] * len(ids)
        kept = [i for i, keep in enumerate(mask) if keep]
        expected = references[row][kept]
        logits = model(case["model"], dtype).forward_full(torch.tensor(ids)[kept])
        assert (logits - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
@given(seed=st.integers(0, 99), length=st.integers(2, 23), data=st.data())
def test_partial_pass_over_unchanged_rows_gives_the_full_pass(family, seed, length, data):
    net = random_model(family, seed, torch.float32)
    tokens = torch.tensor(random_prompt(net, length, seed))
    everything, full = torch.arange(length), net.forward_full(tokens)
    predict = torch.tensor(sorted(data.draw(st.sets(st.integers(1, length - 1), min_size=1))))
    extra = data.draw(st.sets(st.integers(0, length - 1)))
    compute = torch.tensor(sorted({*net.sources(predict).tolist(), *extra}))
    cache = net.new_cache(length)
    first = net.forward(tokens, everything, predict, cache)
    again = net.forward(tokens, compute, predict, cache)
    expected = full[net.sources(predict)]
    scale = expected.abs().max()
    assert (first - expected).abs().max() <= 1e-5 * scale
    assert (again - expected).abs().max() <= 1e-5 * scale
    assert cache.rows_written == net.spec.layers * (length + len(compute))


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_sequences_have_the_logits_of_each_alone_whatever_is_beside_them(family):
    net = random_model(family, 1, torch.float32)

    def steps(first_prompt, refresh):
        out = []
        for tokens in (first_prompt, torch.tensor(random_prompt(net, 12, 2))):
            cache = net.new_cache(len(tokens))
            everything = torch.arange(len(tokens))
            net.forward(tokens, everything, everything[-2:], cache)
            compute = everything if refresh else everything[2:]
            out.append(StepInput(tokens, compute, everything[-2:], cache))
        return out

    for refresh in (True, False):
        prompt = torch.tensor(random_prompt(net, 5, 1))
        packed = net.forward_packed(steps(prompt, refresh))
        alone = torch.cat([net.forward_packed([step]) for step in steps(prompt, refresh)])
        beside_others = net.forward_packed(steps(torch.tensor(random_prompt(net, 9, 3)), refresh))
        assert packed.isfinite().all()
        assert (packed - alone).abs().max() <= 1e-5 * alone.abs().max()
        assert (beside_others[2:] - alone[2:]).abs().max() <= 1e-5 * alone.abs().max()


def test_unfused_attention_is_fused_attention():
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 6, 7), torch.randn(2, 11, 7), torch.randn(2, 11, 7)
    weights = attention_weights(q, k)
    assert weights.shape == (6, 5, 11)
    torch.testing.assert_close(weights.sum(-1), torch.ones(6, 5))
    torch.testing.assert_close(weigh(weights, v), attention(q, k, v))
    # a query head looks at the key/value head of its group
    alone = torch.softmax(q[:, 4] @ k[1].T / 7**0.5, dim=-1)
    torch.testing.assert_close(weights[4], alone)


def test_the_head_reads_predicted_rows_alone_and_predict_all_changes_nothing():
    net = random_model("dream", 3)
    tokens, rows = torch.tensor(random_prompt(net, 13)), torch.arange(13)
    seen = []
    net.head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[0]))
    few = net.forward_packed([StepInput(tokens, rows, rows[4:7], net.new_cache(13))])
    all_rows = net.forward_packed([StepInput(tokens, rows, rows[4:7], net.new_cache(13), predict_all=True)])
    assert seen == [3, 13]
    torch.testing.assert_close(few, all_rows)


def test_a_row_that_was_never_computed_is_not_attended_to():
    net = random_model("llada")
    tokens = torch.tensor(random_prompt(net, 7))
    with pytest.raises(AssertionError, match=r"rows \[0, 1\] would be attended to"):
        net.forward(tokens, torch.arange(2, 7), torch.arange(3, 5), net.new_cache(7))
    with pytest.raises(AssertionError, match="outside the compute set"):
        cache = net.new_cache(7)
        net.forward(tokens, torch.arange(7), torch.arange(3, 5), cache)
        net.forward(tokens, torch.arange(4, 7), torch.arange(3, 5), cache)


def test_more_rows_than_positions_is_refused():
    net = random_model("llada")
    with pytest.raises(ValueError, match="513 rows .* exceed the model's 512 positions"):
        net.forward_full(torch.zeros(513, dtype=torch.long))
