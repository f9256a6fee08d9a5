"""Every figure that a table shows, defined once. Pure numbers in, numbers out: no torch, no files.

Two rules hold throughout. A rate over a set is the sum of its numerators over the sum of its denominators, never a mean
of rates. A figure that cannot be had (a rate over nothing, the error of one observation) is None, never 0.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000  # of the bootstrap


# -- one sample ------------------------------------------------------------------------------------------------------


def generated_tokens(canvas: Sequence[int], ends: Container[int]) -> int:
    """Number of canvas tokens before the first end token (EOS or EoT). The prompt and the fill are never counted."""
    return next((row for row, token in enumerate(canvas) if token in ends), len(canvas))


def is_empty(canvas: Sequence[int], ends: Container[int]) -> bool:
    """The answer has no token: the canvas begins with an end token."""
    return generated_tokens(canvas, ends) == 0


def is_truncated(canvas: Sequence[int], ends: Container[int]) -> bool:
    """The canvas holds no end token: the answer may have been cut off by its length."""
    return generated_tokens(canvas, ends) == len(canvas)


# -- rates over a set of samples -------------------------------------------------------------------------------------


def ratio_of_sums(numerators: Iterable[float], denominators: Iterable[float]) -> float | None:
    """Σ numerators / Σ denominators; None where the denominators sum to nothing."""
    below = math.fsum(denominators)
    return math.fsum(numerators) / below if below else None


@dataclass(frozen=True)
class Figures:
    """What a set of samples cost, and the rates that follow from it."""

    n: int
    generated_tokens: int
    seconds: float
    steps: int
    flops: float
    tokens_per_second: float | None  # throughput: Σ generated tokens / Σ seconds
    tokens_per_forward: float | None  # Σ generated tokens / Σ forward passes: what parallel decoding gains, in steps
    recompute_ratio: float | None  # Σ rows computed / Σ (steps · T): 1 for full recompute
    refresh_rate: float | None  # Σ refreshes / Σ steps, each sample's first step included
    decision_share: float | None  # Σ seconds spent deciding what to compute / Σ seconds
    decision_parts: Mapping[str, float]  # the same, part by part, as shares of Σ seconds
    peak_memory_bytes: int | None  # the largest of the samples' peaks; None where none was measured
    empty: int  # number of samples
    truncated: int  # number of samples


def figures(samples: Iterable[Mapping[str, Any]]) -> Figures:
    """The figures of the samples, each as `evaluation.generate` records it.

    Raises:
        ValueError: there is no sample.
    """
    samples = list(samples)
    if not samples:
        raise ValueError("no samples: there is nothing to take figures of")

    def total(key: str) -> float:
        return math.fsum(sample[key] for sample in samples)

    def rate(numerator: str, denominator: str) -> float | None:
        return ratio_of_sums([total(numerator)], [total(denominator)])

    seconds = total("seconds")
    parts = dict.fromkeys(part for sample in samples for part in sample["decision_parts"])
    peaks = [sample["peak_memory_bytes"] for sample in samples if sample["peak_memory_bytes"] is not None]
    return Figures(
        n=len(samples),
        generated_tokens=int(total("generated_tokens")),
        seconds=seconds,
        steps=int(total("steps")),
        flops=total("flops"),
        tokens_per_second=rate("generated_tokens", "seconds"),
        tokens_per_forward=rate("generated_tokens", "steps"),
        recompute_ratio=rate("rows_computed", "rows_total"),
        refresh_rate=rate("refreshes", "steps"),
        decision_share=rate("decision_seconds", "seconds"),
        decision_parts={
            part: math.fsum(sample["decision_parts"].get(part, 0.0) for sample in samples) / seconds
            for part in parts
            if seconds
        },
        peak_memory_bytes=max(peaks, default=None),
        empty=sum(sample["empty"] for sample in samples),
        truncated=sum(sample["truncated"] for sample in samples),
    )


# -- accuracy --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A mean over n observations with its standard error (None for a single observation)."""

    n: int
    mean: float
    se: float | None


def mean_of(values: Iterable[float]) -> Mean:
    """Mean and standard error s/√n, s with n − 1 in its denominator (as lm-eval reports it). Right or wrong: 1 or 0.

    Raises:
        ValueError: there is no value; the accuracy of nothing is not 0.
    """
    values = [float(value) for value in values]
    n = len(values)
    if not n:
        raise ValueError("no values: the mean of nothing is not 0")
    mean = math.fsum(values) / n
    spread = math.fsum((value - mean) ** 2 for value in values)
    return Mean(n, mean, math.sqrt(spread / (n - 1) / n) if n > 1 else None)


@dataclass(frozen=True)
class GroupMeans:
    """The two means over groups of unequal size; a table says which of them it shows."""

    micro: Mean  # over items: a group counts by its size
    macro: Mean  # over groups: each counts the same; n is still the number of items


def group_means(groups: Mapping[str, Mean]) -> GroupMeans:
    """Micro and macro mean of groups, e.g. the subtasks of BBH.

    The micro error is that of all items together: s² is pooled from the groups' own spreads and the spread of their
    means. The macro error is √(Σ se²) / number of groups. Either is None where it would need a group's missing error.

    Raises:
        ValueError: there is no group.
    """
    if not groups:
        raise ValueError("no groups: there is no mean over them")
    means = list(groups.values())
    n = sum(group.n for group in means)
    micro = math.fsum(group.n * group.mean for group in means) / n
    spread = math.fsum(
        (group.se or 0.0) ** 2 * group.n * (group.n - 1) + group.n * (group.mean - micro) ** 2 for group in means
    )
    errors = [group.se for group in means if group.se is not None]
    return GroupMeans(
        micro=Mean(n, micro, math.sqrt(spread / (n - 1) / n) if n > 1 else None),
        macro=Mean(
            n,
            math.fsum(group.mean for group in means) / len(means),
            math.sqrt(math.fsum(error**2 for error in errors)) / len(means) if len(errors) == len(means) else None,
        ),
    )


@dataclass(frozen=True)
class McNemar:
    """Two methods on the same items."""

    only_first: int  # items that the first alone got right
    only_second: int
    p: float  # exact, two-sided


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """The exact McNemar test: under the null each discordant item falls to either method with probability ½.

    p = min(1, 2·P[X ≤ min(b, c)]), X ~ Binomial(b + c, ½); 1 where no item is discordant.

    Raises:
        ValueError: the sequences are not verdicts on the same items.
    """
    pairs = list(zip(first, second, strict=True))
    b = sum(bool(one) and not two for one, two in pairs)
    c = sum(bool(two) and not one for one, two in pairs)
    tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1))
    return McNemar(b, c, min(1.0, float(2 * tail / 2 ** (b + c))))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate that one of k answers passes, from n sampled answers: 1 − C(n−c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1.

    Raises:
        ValueError: k > n (n answers say nothing about more than n), or the counts are impossible.
    """
    if not 0 <= correct <= n:
        raise ValueError(f"{correct} correct answers out of {n} are impossible")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be had from {n} answer{'s' if n != 1 else ''} a problem: sample {k} or more")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], ks: Iterable[int] = (1, 10, 100)) -> dict[int, Mean]:
    """pass@k over problems, each given as (answers, correct answers), for each k that every problem has answers for."""
    fewest = min(n for n, _ in counts)
    return {k: mean_of(pass_at_k(n, correct, k) for n, correct in counts) for k in ks if k <= fewest}


# -- speed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """A ratio of sums over the same prompts, with its interval (None for a single prompt)."""

    value: float
    low: float | None
    high: float | None


def paired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Ratio:
    """Σ numerators / Σ denominators with a bootstrap interval over prompts.

    A prompt is drawn with both of its values, so that its difficulty cancels. The interval is the percentile interval
    of 10,000 resamples, from the seed.

    Raises:
        ValueError: the values are not of the same prompts, there are none, or a denominator is not positive.
    """
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if above.shape != below.shape or above.ndim != 1 or not above.size:
        raise ValueError(f"a paired ratio needs the same prompts on both sides, not {above.shape} and {below.shape}")
    if not (below > 0).all():
        raise ValueError(f"a paired ratio needs positive denominators, not {below.min()}")
    value = float(above.sum() / below.sum())
    n = above.size
    if n == 1:
        return Ratio(value, None, None)
    generator = np.random.default_rng(seed)
    ratios = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, 100):  # a hundred at a time: all of them at once would not fit for large sets
        drawn = generator.integers(n, size=(100, n))
        ratios[start : start + 100] = above[drawn].sum(axis=1) / below[drawn].sum(axis=1)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Ratio(value, float(low), float(high))


@dataclass(frozen=True)
class Speedup:
    """A method against full recompute with one token a step, and whence the gain: total = caching · parallel."""

    total: Ratio
    caching: Ratio  # full recompute with the method's own commit rule / the method
    parallel: Ratio  # full recompute with one token a step / full recompute with the method's commit rule


def speedup(
    one_token: Sequence[float], same_rule: Sequence[float], method: Sequence[float], *, seed: int = 0
) -> Speedup:
    """Paired speedup, Σ reference seconds / Σ method seconds on the same prompts, split in two. Below 1 is a slowdown.

    Args:
        one_token: seconds a prompt of full recompute, one token a step.
        same_rule: seconds a prompt of full recompute with the method's commit rule.
        method: seconds a prompt of the method.
        seed: of the bootstrap.
    """
    return Speedup(
        total=paired_ratio(one_token, method, seed=seed),
        caching=paired_ratio(same_rule, method, seed=seed),
        parallel=paired_ratio(one_token, same_rule, seed=seed),
    )


def times(ratio: float | None) -> str:
    """A ratio as tables print it, slowdowns included: 0.5 → "0.50×"."""
    return "–" if ratio is None else f"{ratio:.2f}×"
