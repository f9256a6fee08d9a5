"""Calibration recovers a known optimum; trials go to the run store and are not made twice."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.studies import calibrate
from evaluation.studies.calibrate import Calibrate
from evaluation.studies.halving import Outcome, compare, search

TAUS, KS = (0.1, 0.25, 0.5, 1.0, 2.0, math.inf), (0, 4, 16, 64)
PAIRS = [(tau, k) for tau in TAUS for k in KS]
TOLERANCE = 0.03


def true_loss(pair, knee, need):
    """Nothing up to the knee, then ever more; what recomputing too few tokens loses comes on top."""
    tau, k = pair
    return min(0.5, 0.2 * max(0.0, min(tau, 4) - knee) + 0.12 * max(0.0, 1 - k / need))


def true_cost(pair):
    """Fewer refreshes and fewer tokens cost less."""
    tau, k = pair
    return 0.2 + 0.6 / (1 + 2 * min(tau, 4)) + 0.002 * k


def world(knee, need, seed, prompts):
    """Right or wrong for each prompt and pair; a prompt lost to a small loss is lost to every larger one."""
    import random

    rng = random.Random(seed)
    easy = [rng.random() < 0.7 for _ in range(prompts)]
    place = [rng.random() for _ in range(prompts)]
    noise = [rng.uniform(0.8, 1.2) for _ in range(prompts)]

    def ask(pair, n):
        loss = true_loss(pair, knee, need) / 0.7
        correct = [one and at >= loss for one, at in zip(easy[:n], place, strict=False)]
        return Outcome(correct, [true_cost(pair) * x for x in noise[:n]])

    return Outcome(easy, noise), ask


def optimum(knee, need):
    return min((p for p in PAIRS if true_loss(p, knee, need) <= TOLERANCE), key=true_cost)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("knee", "need"), [(0.6, 12), (0.3, 3), (1.05, 50), (5, 1)])
def test_the_optimum_of_a_known_surface_is_recovered(knee, need, seed):
    reference, ask = world(knee, need, seed, 512)
    found = search(PAIRS, reference, ask, tolerance=TOLERANCE, confidence=0.8, prompts=512, rungs=4)
    assert found.chosen is not None
    best = optimum(knee, need)
    assert true_loss(found.chosen.setting, knee, need) <= TOLERANCE
    assert found.chosen.cost <= true_cost(best) + 0.05, f"{found.chosen.setting} instead of {best}"
    assert found.chosen.low <= true_loss(found.chosen.setting, knee, need) <= found.chosen.high


@given(st.floats(0.05, 4), st.sampled_from([1, 3, 12, 50]), st.integers(0, 99))
@settings(max_examples=40)
def test_what_is_chosen_is_admissible_and_each_rung_is_half_as_large(knee, need, seed):
    asked = []
    reference, ask = world(knee, need, seed, 64)

    def counting(pair, n):
        asked.append((pair, n))
        return ask(pair, n)

    found = search(PAIRS, reference, counting, tolerance=TOLERANCE, confidence=0.8, prompts=64, rungs=3)
    assert [sum(n == size for _, n in asked) for size in (16, 32, 64)] == [24, 12, 6]
    if found.chosen:
        assert found.chosen.n == 64 and found.chosen.within >= 0.8 and found.chosen.cost < 1
        assert found.chosen.low <= found.chosen.loss <= found.chosen.high


def test_nothing_is_chosen_where_every_setting_loses_too_much():
    reference = Outcome([True] * 32, [1.0] * 32)
    found = search(
        PAIRS,
        reference,
        lambda pair, n: Outcome([i % 2 == 0 for i in range(n)], [0.1] * n),
        tolerance=0.05,
        confidence=0.8,
        prompts=32,
        rungs=2,
    )
    assert found.chosen is None and len(found.trials) == 24 + 12


def test_a_trial_is_paired_with_the_reference():
    reference, own = Outcome([True, True, False, True], [2.0] * 4), Outcome([True, False, True, True], [1.0] * 4)
    trial = compare("setting", 0, reference, own, 0.05)
    assert (trial.accuracy, trial.loss, trial.cost, trial.n) == (0.75, 0, 0.5, 4)
    assert trial.low == -trial.high and 0.5 < trial.within < 0.6
    unseen = compare("setting", 0, reference, Outcome(reference.correct, [1.0] * 4), 0.05)
    assert 0.5 < unseen.within < 0.8, "no loss on four prompts is no proof of none"
    many = compare("setting", 0, Outcome([True] * 200, [1.0] * 200), Outcome([True] * 200, [1.0] * 200), 0.05)
    assert many.within > 0.99


SETTINGS = {
    "taus": (0.1, 2.0),
    "ks": (0, 4),
    "tolerance": 0.05,
    "confidence": 0.8,
    "prompts": 32,
    "rungs": 2,
    "fresh": 8,
    "cost": "flops",
    "batch_size": 2,
    "store": "unused",
}


def test_conclusions_name_pair_interval_and_verdict(tmp_path, monkeypatch):
    import pandas as pd

    reference, ask = world(1.05, 1, 0, 32)
    study = Calibrate(**SETTINGS)
    found = search(study.pairs, reference, ask, tolerance=0.05, confidence=0.5, prompts=32, rungs=2)
    assert found.chosen is not None
    place = {"model": "m", "benchmark": "b"}
    rows = [place | calibrate.row(t, str(t.rung), calibrate.state(t, found)) for t in found.trials]
    check = compare(found.chosen.setting, 2, *(Outcome([True] * 64, [c] * 64) for c in (1.0, 0.5)), 0.05)
    rows.append(place | calibrate.row(check, "fresh", "checked"))
    result = study.report({"trials": pd.DataFrame(rows)}, tmp_path)
    tau, k = found.chosen.setting
    assert f"m, b: tau = {tau:g}, k = {k} costs" in result.conclusion[0] and "tolerated: 5.0" in result.conclusion[0]
    assert "on 64 fresh prompts" in result.conclusion[1] and "its whole interval too" in result.conclusion[1]
    assert [t.frame["state"].tolist() for t in result.tables[:1]] == [["chosen", "checked"]]
    dropped = pd.DataFrame(rows).query("state not in ['chosen', 'checked']").assign(n=32)
    for within, cost, first in (
        (0.2, 0.5, "of the pairs asked all 32 prompts, none is within the tolerance"),
        (0.9, 1.0, "of the pairs asked all 32 prompts, those within the tolerance cost no less than full recompute"),
    ):
        said = study.report({"trials": dropped.assign(within=within, cost=cost)}, tmp_path).conclusion
        assert first in said[0] and "tau = -1" in said[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerance": 2}, "study.tolerance 2 must be a share"),
        ({"cost": "money"}, "cost=money is unknown; one of flops"),
        ({"prompts": 3, "rungs": 4}, "prompts=3 cannot be halved 3 times"),
        ({"ks": []}, r"study.ks=\[\] must be a list of one value or more"),
        ({"taus": [".inf"]}, "study.taus '.inf' must be a number"),
        ({"fresh": -1}, "study.fresh -1 must be a whole number"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(Calibrate(**SETTINGS), **changes)
