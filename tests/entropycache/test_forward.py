"""The forward passes: against the references' logits, partial against full, packed against alone."""

import json
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from entropycache.models.attention import attention, attention_weights, in_pairs, rms_norm, rope_table, rotate_, weigh
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


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_rotation_of_pairs_is_the_rotation_of_halves(dtype, tolerance):
    """Against the formula of both families' modelling files: x cos + rotate_half(x) sin."""
    spec = random_model("dream").spec
    e, heads, rows = spec.head_dim, 3, 9
    halves = torch.randn(heads * e, rows, dtype=torch.float64)
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * spec.rope_theta ** -(torch.arange(0, e, 2).double() / e)
    cos, sin = torch.cat([angle.cos()] * 2, dim=1).T, torch.cat([angle.sin()] * 2, dim=1).T
    first, second = (by_head := halves.view(heads, e, rows)).chunk(2, dim=1)
    wanted = by_head * cos + torch.cat([-second, first], dim=1) * sin

    pairs = torch.empty_like(halves)
    in_pairs(pairs, e).copy_(halves.view(heads, 2, e // 2, rows))
    x = pairs.T.reshape(rows, heads, e).to(dtype).contiguous()
    assert rotate_(x, rope_table(spec, rows, x.device, dtype)) is x
    again = in_pairs(x.double().flatten(1).T, e).reshape(heads, e, rows)
    assert (again - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_norm_is_torchs(dtype):
    x, weight = torch.randn(3, 5, 24, dtype=dtype), torch.rand(24, dtype=dtype)
    x[0, 0] = 0
    assert rms_norm(x, weight, 1e-5).dtype == dtype
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (24,), weight, 1e-5))


def test_scratch_is_kept_from_step_to_step_and_never_shared():
    net = random_model("llada")
    with torch.inference_mode(), net.scratch(4) as first, net.scratch(4) as second:
        assert first.data_ptr() != second.data_ptr()
    held = {first.data_ptr(), second.data_ptr()}
    with torch.no_grad(), net.scratch(3) as smaller:
        assert smaller.data_ptr() in held
        smaller.fill_(0)  # made in inference mode, to be written to outside of it too
    with torch.no_grad(), net.scratch(40) as larger:
        assert larger.numel() > smaller.numel()
    with net.scratch(4) as where_gradients_are:
        assert where_gradients_are is None
    net.release_scratch()
    with torch.no_grad(), net.scratch(4) as anew:
        assert anew.numel() < larger.numel()


def test_threads_with_one_model_do_not_disturb_each_other():
    net = random_model("dream", 1)
    prompts = [torch.tensor(random_prompt(net, 20 + length, length)) for length in range(4)]

    def logits_of(tokens):
        rows = torch.arange(len(tokens))
        with torch.inference_mode():
            return net.forward(tokens, rows, rows, net.new_cache(len(rows)))

    alone = [logits_of(prompt) for prompt in prompts]
    wrong = []

    def work(prompt, wanted):
        wrong.extend(1 for _ in range(30) if not torch.equal(logits_of(prompt), wanted))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(prompts, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_block_writes_over_its_input_only_where_no_gradient_is_asked_for():
    net = random_model("llada")
    layer = net.layers[0]
    x, attended = torch.randn(2, 7, net.spec.hidden, dtype=net.dtype)
    before = x.clone()
    kept = layer.finish(x, attended)
    assert torch.equal(x, before)
    with torch.no_grad():
        assert layer.finish(x, attended).data_ptr() == x.data_ptr()
    torch.testing.assert_close(x, kept.detach())


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
