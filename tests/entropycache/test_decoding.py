"""Windows, commit rules, confidence and entropy, each against hand-worked values (cases D1, D3-D7)."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entropycache import Decoding, SequenceState
from entropycache.decoding import Decoder, certainty_density, gumbel, rank, split_evenly, timestep_count, token_entropy
from tests.models import random_spec

SPEC = random_spec("llada", vocab=16)  # mask 15, EOS 14, EoT 13
EOS, EOT, MASK = SPEC.eos_id, 13, SPEC.mask_id


def state(gen_length, known=(), prompt=3, tokens=None):
    """A sequence with the canvas rows `known` decoded."""
    made = SequenceState.start(torch.zeros(prompt, dtype=torch.long), gen_length, MASK)
    for row in known:
        made.masked[prompt + row] = False
        made.tokens[prompt + row] = (tokens or {}).get(row, 1)
    return made


def logits_for(*rows, vocab=16):
    """Log-probabilities: each row a {token: probability}, the rest spread evenly over the other tokens."""
    out = torch.zeros(len(rows), vocab)
    for i, row in enumerate(rows):
        out[i] = math.log((1 - sum(row.values())) / (vocab - len(row)) + 1e-30)
        for token, probability in row.items():
            out[i, token] = math.log(probability)
    return out


def commit(decoding, logits, current):
    decoder = Decoder(decoding, SPEC)
    return decoder.commit(logits, decoder.candidates(current), current)


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_confidence_is_the_probability_under_the_raw_logits(temperature):  # D1
    logits = torch.full((2, 16), -1e9)
    logits[0, :4] = torch.tensor([2.0, 1.2, 0.0, 0.0])
    logits[1, :4] = torch.tensor([3.0, 1.5, 0.0, 0.0])
    decoder = Decoder(Decoding(2, "whole", temperature=temperature), SPEC)
    read = decoder.read(logits, torch.tensor([3, 4]), state(2))
    if temperature < 1:  # at a temperature of 1 the noise may choose another token
        assert read.tokens.tolist() == [0, 0]
        assert read.probability.tolist() == pytest.approx([0.581, 0.756], abs=5e-4)
        assert decoder.commit(logits, torch.tensor([3, 4]), state(2)).rows.tolist() == [4]
    chosen = logits.softmax(-1)[[0, 1], read.tokens]
    torch.testing.assert_close(read.probability, chosen)


def test_entropy_is_in_nats_over_the_raw_logits():  # D1
    assert token_entropy(torch.tensor([[2.0, 1, 0, 0]])).item() == pytest.approx(1.0487, abs=5e-5)
    assert token_entropy(torch.zeros(1, 4)).item() == pytest.approx(math.log(4))
    assert token_entropy(torch.tensor([[0.0, -math.inf]])).item() == 0
    assert token_entropy(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gen_length": 512, "block_length": 64, "steps": 100}, "steps 100 .* 8 blocks .* steps 96 or 104 would do"),
        ({"gen_length": 100, "block_length": 32}, "gen_length 100 .* block_length 32; gen_length 96 or 128 would do"),
        ({"gen_length": 16, "block_length": 32}, "gen_length 32 would do, or block_length"),
        ({"gen_length": 64}, "'blockwise' needs block_length"),
        ({"gen_length": 64, "window": "sliding"}, "'sliding' needs window_length"),
        ({"gen_length": 64, "window": "whole", "rule": "threshold"}, "'threshold' needs threshold"),
        ({"gen_length": 64, "window": "whole", "rule": "factor"}, "'factor' needs factor"),
        ({"gen_length": 64, "window": "whole", "temperature": -1.0}, "temperature -1.0 must be 0"),
        ({"gen_length": 64, "window": "whole", "forbid": ("pad",)}, "forbid 'pad' is unknown"),
        ({"gen_length": 64, "window": "whole", "temperature": math.nan}, "temperature nan must be 0"),
        ({"gen_length": 0, "window": "whole"}, "gen_length 0 must be a whole number, 1 or above"),
        ({"gen_length": 64, "window": "sliding", "window_length": 0}, "window_length 0 must be a whole number, 1"),
        ({"gen_length": 64, "window": "whole", "rule": "threshold", "threshold": math.nan}, "threshold nan must be a"),
        ({"gen_length": 64, "window": "whole", "rule": "factor", "factor": -1}, "factor -1 must be a number above 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_with_what_would_do(arguments, message):  # D3
    with pytest.raises(ValueError, match=message):
        Decoding(**arguments)


def test_many_tokens_a_step_are_warned_about_and_are_no_reference():  # D3
    with pytest.warns(UserWarning, match="32 tokens a step"):
        fast = Decoding(256, block_length=32, steps=8)
    assert not fast.one_token_a_step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Decoding(256, block_length=32).one_token_a_step


def test_schedules():  # D3
    assert split_evenly(32, 5) == [7, 7, 6, 6, 6]
    assert split_evenly(3, 5) == [1, 1, 1]
    assert split_evenly(64, 64) == [1] * 64
    # int(64·(1 - s/t)) at the first of 64 steps is 0: Dream's sampler may commit nothing
    assert timestep_count(64, 0, 64) == 0
    assert timestep_count(7, 63, 64) == 7


@pytest.mark.parametrize(
    ("decoding", "confidences", "committed"),
    [
        (Decoding(3, "whole", rule="threshold", threshold=0.9), (0.3, 0.5, 0.2), [1]),
        (Decoding(3, "whole", rule="threshold", threshold=0.5), (0.3, 0.5, 0.8), [1, 2]),
        (Decoding(3, "whole", rule="threshold", threshold=1.1), (0.999, 0.9999, 0.99), [1]),
        (Decoding(3, "whole", rule="threshold", threshold=0.0), (0.3, 0.5, 0.2), [0, 1, 2]),
        (Decoding(3, "whole"), (0.4, 0.4, 0.3), [0]),  # ties: the lower row
        (Decoding(3, "whole", steps=1), (0.4, 0.4, 0.3), [0, 1, 2]),
        # 2·(1-.9) = .2 < 1, 3·(1-.8) = .6 < 1, 4·(1-.7) = 1.2: two
        (Decoding(3, "whole", rule="factor", factor=1.0), (0.7, 0.9, 0.8), [1, 2]),
        (Decoding(3, "whole", rule="factor", factor=0.1), (0.3, 0.5, 0.2), [1]),
    ],
)
def test_commit_rules(decoding, confidences, committed):  # D4
    logits = logits_for(*({1: c} for c in confidences))
    assert commit(decoding, logits, state(3)).rows.tolist() == [3 + row for row in committed]


def test_a_finished_sequence_has_no_candidates_and_steps_never_outnumber_masks():  # D4
    decoding = Decoding(4, "whole", steps=4)
    assert not Decoder(decoding, SPEC).candidates(state(4, range(4))).numel()
    two_left = state(4, [0, 2])
    assert len(commit(Decoding(4, "whole", steps=1), logits_for({1: 0.5}, {1: 0.6}), two_left)) == 2


def test_windows():
    def rows(**window):
        return Decoder(Decoding(8, **window), SPEC).candidates(state(8, [0, 1, 2, 4])).tolist()

    assert rows(window="blockwise", block_length=4) == [6]
    assert rows(window="sliding", window_length=2) == [6, 8]
    assert rows(window="whole") == [6, 8, 9, 10]
    assert Decoder(Decoding(8, block_length=4), SPEC).candidates(state(8, range(4))).tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize("end", [EOS, EOT])
@pytest.mark.parametrize(
    "rule",
    [{}, {"rule": "threshold", "threshold": 0.9}, {"rule": "factor", "factor": 1.0}],
    ids=["top_n", "threshold", "factor"],
)
def test_eos_suppression_ranks_an_end_token_behind_words(end, rule):  # D5
    logits = logits_for({end: 0.99}, {1: 0.60})
    assert commit(Decoding(2, "whole", **rule), logits, state(2)).rows.tolist()[0] == 3
    suppressed = commit(Decoding(2, "whole", eos_suppression=True, **rule), logits, state(2))
    assert suppressed.rows.tolist() == [4]
    # alone, it may still become the end token
    left = commit(Decoding(2, "whole", eos_suppression=True, **rule), logits[:1], state(2, [1]))
    assert left.tokens.tolist() == [end]


@pytest.mark.parametrize("end", [EOS, EOT])
def test_stop_early_needs_an_end_token_with_no_mask_before_it(end):  # D6
    early, late = (Decoder(Decoding(6, "whole", eos=eos), SPEC) for eos in ("stop_early", "decode_all"))
    answered = state(6, [0, 1, 2], tokens={2: end})
    open_before = state(6, [0, 2], tokens={2: end})
    assert early.candidates(answered).tolist() == [] and late.candidates(answered).tolist() == [6, 7, 8]
    assert early.candidates(open_before).tolist() == [4, 6, 7, 8]


def test_the_mask_token_is_never_chosen_and_the_logits_stay_raw():  # D7
    logits = logits_for({MASK: 0.9, 2: 0.06})
    before = logits.clone()
    chosen = commit(Decoding(1, "whole"), logits, state(1))
    assert chosen.tokens.tolist() == [2]
    assert chosen.confidence.tolist() == pytest.approx([0.06], rel=1e-5)
    assert torch.equal(logits, before)
    assert commit(Decoding(1, "whole", forbid=()), logits, state(1)).tokens.tolist() == [MASK]
    assert commit(Decoding(1, "whole", forbid=("mask", 2, "eos")), logits, state(1)).tokens.item() not in (
        MASK,
        2,
        EOS,
        EOT,
    )


def test_other_confidences():
    logits = logits_for({1: 0.5, 2: 0.45}, {1: 0.4})

    def scores(kind):
        return Decoder(Decoding(2, "whole", confidence=kind), SPEC).read(logits, torch.tensor([3, 4]), state(2)).score

    assert scores("margin").tolist() == pytest.approx([0.05, 0.36], abs=1e-4)
    torch.testing.assert_close(scores("negative_entropy"), -token_entropy(logits))
    assert commit(Decoding(2, "whole", confidence="margin"), logits, state(2)).rows.tolist() == [4]


def test_gumbel_noise_depends_on_seed_step_and_row_alone():
    logits = torch.zeros(3, 50)
    noise = gumbel(logits, 7, 2, torch.tensor([4, 9, 5]))
    assert torch.equal(noise[1:2], gumbel(logits[:1], 7, 2, torch.tensor([9])))
    others = [gumbel(logits[:1], *key, torch.tensor([row])) for key, row in (((8, 2), 9), ((7, 3), 9), ((7, 2), 10))]
    assert not any(torch.equal(noise[1:2], other) for other in others)
    many = gumbel(torch.zeros(1, 200_000), 0, 0, torch.tensor([0]))
    assert many.mean().item() == pytest.approx(0.5772, abs=0.01)  # Euler's constant
    assert many.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.sampled_from([0.7, 3.0, 10.0]))
def test_certainty_density_is_its_definition(known, sigma):
    g = len(known)
    extended = [1.0] * g + [float(k) for k in known] + [float(known[-1])] * g
    kernel = {d: math.exp(-0.5 * (d / sigma) ** 2) for d in range(-3 * g, 3 * g)}
    expected = [
        sum(extended[j] * kernel[j - (g + i)] for j in range(3 * g) if j - (g + i) in kernel) / sum(kernel.values())
        for i in range(g)
    ]
    assert certainty_density(torch.tensor(known), sigma).tolist() == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.booleans()), min_size=1, max_size=9))
def test_rank_is_by_group_then_score_then_row(rows):
    score, behind = torch.tensor([s for s, _ in rows]), torch.tensor([b for _, b in rows])
    assert rank(score, behind).tolist() == sorted(range(len(rows)), key=lambda i: (rows[i][1], -rows[i][0], i))
