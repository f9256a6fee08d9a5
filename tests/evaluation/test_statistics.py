"""Each figure against a hand-worked example or scipy; cases M1, M3 and S9."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from evaluation import statistics
from evaluation.statistics import Mean

EOS, EOT, WORD = 2, 3, 7
ENDS = {EOS, EOT}


def sample(**fields):
    figures = {
        "generated_tokens": 40,
        "seconds": 2.0,
        "steps": 64,
        "refreshes": 9,
        "rows_computed": 1000.0,
        "rows_total": 10_000,
        "flops": 1e9,
        "decision_seconds": 0.02,
        "decision_parts": {"plan": 0.005, "entropy": 0.015},
        "peak_memory_bytes": None,
        "empty": False,
        "truncated": False,
    }
    return figures | fields


# -- M1: generated tokens and throughput


@pytest.mark.parametrize(
    "canvas, tokens, empty, truncated",
    [
        ([WORD] * 40 + [EOS] + [WORD] * 215, 40, False, False),
        ([WORD] * 40 + [EOT] + [EOS] * 215, 40, False, False),
        ([EOS] + [WORD] * 255, 0, True, False),
        ([WORD] * 256, 256, False, True),
        ([WORD] * 255 + [EOS], 255, False, False),
    ],
)
def test_generated_tokens_end_before_the_first_end_token(canvas, tokens, empty, truncated):
    assert statistics.generated_tokens(canvas, ENDS) == tokens
    assert statistics.is_empty(canvas, ENDS) is empty
    assert statistics.is_truncated(canvas, ENDS) is truncated


def test_throughput_counts_the_answer_alone():
    """130 prompt tokens, a canvas of 256, 40 real tokens, 2.0 s."""
    assert statistics.figures([sample(generated_tokens=40, seconds=2.0)]).tokens_per_second == 20.0


def test_throughput_of_a_set_is_a_ratio_of_sums():
    together = statistics.figures(
        [sample(generated_tokens=20, seconds=1.0), sample(generated_tokens=200, seconds=20.0)]
    )
    assert together.tokens_per_second == pytest.approx(220 / 21)
    assert f"{together.tokens_per_second:.2f}" == "10.48"  # the mean of the two rates would be 15.00


def test_figures_of_two_samples_by_hand():
    result = statistics.figures(
        [
            sample(peak_memory_bytes=5),
            sample(
                generated_tokens=0,
                seconds=6.0,
                steps=16,
                refreshes=1,
                rows_computed=500.0,
                rows_total=2000,
                flops=3e9,
                decision_seconds=0.06,
                decision_parts={"plan": 0.02, "observer": 0.04},
                peak_memory_bytes=9,
                empty=True,
            ),
        ]
    )
    assert (result.n, result.generated_tokens, result.steps, result.seconds) == (2, 40, 80, 8.0)
    assert result.flops == 4e9
    assert result.tokens_per_forward == 40 / 80
    assert result.recompute_ratio == 1500 / 12_000
    assert result.refresh_rate == 10 / 80
    assert result.decision_share == pytest.approx(0.08 / 8)
    assert result.decision_parts == pytest.approx({"plan": 0.025 / 8, "entropy": 0.015 / 8, "observer": 0.04 / 8})
    assert (result.peak_memory_bytes, result.empty, result.truncated) == (9, 1, 0)


def test_memory_that_was_not_measured_is_not_zero():
    assert statistics.figures([sample()]).peak_memory_bytes is None


def test_a_rate_is_of_sums_and_over_nothing_it_is_not_zero():
    assert statistics.ratio_of_sums([1.0, 5.0], [2.0, 10.0]) == 0.5
    assert statistics.ratio_of_sums([1.0, 0.0], [1.0, 9.0]) == 0.1  # the mean of the two rates would be 0.5
    assert statistics.ratio_of_sums([0.0], [0.0]) is None


def test_figures_of_no_samples_are_refused():
    with pytest.raises(ValueError, match="no samples"):
        statistics.figures([])


# -- accuracy


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=50))
def test_mean_and_standard_error_agree_with_scipy(values):
    result = statistics.mean_of(values)
    assert result.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert result.se == pytest.approx(scipy.stats.sem(values), abs=1e-9)


def test_accuracy_of_three_in_four():
    result = statistics.mean_of([True, True, True, False])
    assert result == Mean(4, 0.75, pytest.approx(math.sqrt(0.75 * 0.25 / 3)))


def test_one_observation_has_no_error_and_none_has_no_mean():
    assert statistics.mean_of([True]) == Mean(1, 1.0, None)
    with pytest.raises(ValueError, match="no values"):
        statistics.mean_of([])


def test_micro_and_macro_mean():
    """S9: 250 items at .80 and 187 at .40."""
    means = statistics.group_means({"large": Mean(250, 0.80, 0.03), "small": Mean(187, 0.40, 0.04)})
    assert f"{means.micro.mean:.4f} {means.macro.mean:.4f}" == "0.6288 0.6000"
    assert means.macro.se == pytest.approx(0.025)
    assert means.micro.n == means.macro.n == 437


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=5))
def test_the_micro_mean_is_the_mean_of_all_items(groups):
    means = statistics.group_means({str(i): statistics.mean_of(group) for i, group in enumerate(groups)})
    pooled = statistics.mean_of([item for group in groups for item in group])
    assert means.micro.mean == pytest.approx(pooled.mean)
    assert means.micro.se == (None if pooled.se is None else pytest.approx(pooled.se))


def test_a_group_of_one_leaves_the_macro_error_open():
    means = statistics.group_means({"one": Mean(1, 1.0, None), "two": Mean(4, 0.5, 0.1)})
    assert means.macro.mean == 0.75
    assert means.macro.se is None


def test_no_groups_are_refused():
    with pytest.raises(ValueError, match="no groups"):
        statistics.group_means({})


# -- McNemar


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_mcnemar_agrees_with_the_exact_binomial_test(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    result = statistics.mcnemar(first, second)
    b = sum(x and not y for x, y in pairs)
    c = sum(y and not x for x, y in pairs)
    assert (result.only_first, result.only_second) == (b, c)
    expected = scipy.stats.binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert result.p == pytest.approx(expected)


def test_mcnemar_by_hand():
    """One against five discordant: 2 · (1 + 6) / 64."""
    result = statistics.mcnemar([1, 0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1, 1])
    assert (result.only_first, result.only_second, result.p) == (1, 5, 14 / 64)


def test_mcnemar_of_many_discordant_items_does_not_overflow():
    assert statistics.mcnemar([True] * 3000 + [False] * 2000, [False] * 3000 + [True] * 2000).p < 1e-40


def test_mcnemar_needs_the_same_items():
    with pytest.raises(ValueError):
        statistics.mcnemar([True], [True, False])


# -- pass@k


def test_pass_at_k():
    """S9: n = 10, c = 3."""
    assert statistics.pass_at_k(10, 3, 1) == pytest.approx(0.30)
    assert statistics.pass_at_k(10, 3, 10) == 1.0
    assert statistics.pass_at_k(10, 0, 10) == 0.0


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_correct_answer(n, data):
    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    assert statistics.pass_at_k(n, correct, k) == pytest.approx(scipy.stats.hypergeom(n, correct, k).sf(0))


@pytest.mark.parametrize("n, correct, k", [(1, 1, 10), (5, 0, 6), (5, 6, 1), (5, -1, 1), (5, 1, 0)])
def test_pass_at_k_refuses_what_the_answers_cannot_say(n, correct, k):
    with pytest.raises(ValueError):
        statistics.pass_at_k(n, correct, k)


def test_greedy_samples_offer_pass_at_1_alone():
    assert list(statistics.mean_pass_at_k([(1, 1), (1, 0)])) == [1]
    assert statistics.mean_pass_at_k([(1, 1), (1, 0)])[1].mean == 0.5
    assert list(statistics.mean_pass_at_k([(20, 1), (10, 0)])) == [1, 10]


# -- speed


def test_a_slowdown_is_printed_as_it_is():
    """M3: baseline 2.0 s, method 4.0 s."""
    ratio = statistics.paired_ratio([2.0], [4.0])
    assert (ratio.value, ratio.low, ratio.high) == (0.5, None, None)
    assert statistics.times(ratio.value) == "0.50×"
    assert statistics.times(None) == "–"


def test_the_ratio_is_of_sums():
    assert statistics.paired_ratio([1.0, 20.0], [1.0, 5.0]).value == 21 / 6


def test_prompts_that_all_speed_up_alike_leave_no_doubt():
    """Pairing cancels the prompts' own lengths."""
    ratio = statistics.paired_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    assert (ratio.low, ratio.high) == (2.0, 2.0)


@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_interval_agrees_with_scipys_bootstrap(confidence):
    generator = np.random.default_rng(3)
    baseline = generator.gamma(4.0, size=40)
    method = baseline / 3 * generator.uniform(0.5, 1.5, size=40)
    ours = statistics.paired_ratio(baseline, method, confidence=confidence)
    theirs = scipy.stats.bootstrap(
        (baseline, method),
        lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
        paired=True,
        method="percentile",
        n_resamples=10_000,
        confidence_level=confidence,
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert ours.low < ours.value < ours.high
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=0.01)


def test_the_interval_depends_on_nothing_but_values_and_seed():
    values = [1.0, 2.0, 4.0], [1.0, 1.0, 1.0]
    assert statistics.paired_ratio(*values, seed=1) == statistics.paired_ratio(*values, seed=1)


def test_the_interval_covers_as_often_as_it_says():
    """A hundred sets from one law with true ratio 2: 95 % intervals miss it a few times, not often."""
    generator = np.random.default_rng(0)
    missed = 0
    for seed in range(100):
        method = generator.gamma(4.0, size=30)
        ratio = statistics.paired_ratio(2 * method * generator.uniform(0.6, 1.4, size=30), method, seed=seed)
        missed += not ratio.low <= 2 <= ratio.high
    assert 1 <= missed <= 14


@pytest.mark.parametrize("above, below", [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([[1.0]], [[1.0]])])
def test_a_ratio_needs_pairs_with_positive_seconds(above, below):
    with pytest.raises(ValueError, match="paired ratio"):
        statistics.paired_ratio(above, below)


def test_a_speedup_is_caching_times_parallel_decoding():
    split = statistics.speedup(one_token=[8.0, 12.0], same_rule=[4.0, 6.0], method=[2.0, 2.0])
    assert split.total.value == 5.0
    assert split.parallel.value == 2.0
    assert split.caching.value == 2.5
    assert split.caching == statistics.paired_ratio([4.0, 6.0], [2.0, 2.0])  # with its interval
