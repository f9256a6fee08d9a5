"""The studies' figures: drift against a literal recomputation, volatility's identities, statistics against scipy."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from baselines import FullRecompute
from entropycache import Decoding, EntropyCache, generate
from evaluation.files import StoreError
from evaluation.generate import Answerer
from evaluation.studies import association
from evaluation.studies.association import estimate
from evaluation.studies.cost import Cost, knee_table, shares
from evaluation.studies.drift import Drift, groups
from evaluation.studies.overhead import Overhead, conclude, correlation, slope
from evaluation.studies.result import folder_of, together, write_study
from evaluation.studies.trajectory import Subject, moved, passes
from evaluation.studies.volatility import Volatility, partial_errors, value_changes
from tests.models import FAMILIES, random_model, random_prompt

THRESHOLD = Decoding(12, block_length=6, rule="threshold", threshold=0.6)
CASES = [(family, seed) for seed, family in zip(range(5), itertools.cycle(FAMILIES))]


class Prompts(Subject):
    """A subject whose prompts are random tokens."""

    def prompts(self, count):
        return [random_prompt(self.answerer.model, 5 + seed, seed) for seed in range(count)]


def subject(model, decoding=THRESHOLD, name="model"):
    return Prompts(name, Answerer(model, None, FullRecompute(), decoding, chat=False, bos=False), [], {}, {})


# -- drift -----------------------------------------------------------------------------------------------------------


def literal_pass(model, tokens):
    """Keys and values [layer, row, width], and logits, of one pass over all rows: every sum written out."""
    spec, e = model.spec, model.spec.head_dim
    weights = {name: parameter.numpy() for name, parameter in model.named_parameters()}

    def norm(row, scale):
        return row / math.sqrt(sum(x * x for x in row) / len(row) + spec.norm_eps) * scale

    def rotated(head, position):
        out = head.copy()
        for i in range(e // 2):
            angle = position * spec.rope_theta ** (-2 * i / e)
            out[2 * i] = head[2 * i] * math.cos(angle) - head[2 * i + 1] * math.sin(angle)
            out[2 * i + 1] = head[2 * i + 1] * math.cos(angle) + head[2 * i] * math.sin(angle)
        return out

    x = [weights["embed.weight"][token] for token in tokens]
    keys, values = [], []
    for layer in range(spec.layers):
        own = {name.removeprefix(f"layers.{layer}."): w for name, w in weights.items() if f"layers.{layer}." in name}
        q, k, v = [], [], []
        for position, row in enumerate(x):
            qkv = own["qkv.weight"] @ norm(row, own["attention_norm"]) + own.get("qkv.bias", 0)
            heads = qkv.reshape(-1, e)
            q.append([rotated(head, position) for head in heads[: spec.heads]])
            k.append([rotated(head, position) for head in heads[spec.heads : spec.heads + spec.kv_heads]])
            v.append(heads[spec.heads + spec.kv_heads :])
        keys.append([np.concatenate(heads) for heads in k])
        values.append([np.concatenate(heads) for heads in v])
        for i in range(len(x)):
            attended = []
            for head in range(spec.heads):
                shared = head * spec.kv_heads // spec.heads
                scores = np.array([q[i][head] @ k[j][shared] / math.sqrt(e) for j in range(len(x))])
                share = np.exp(scores - scores.max())
                attended.append(sum(s * v[j][shared] for j, s in enumerate(share / share.sum())))
            x[i] = x[i] + own["out.weight"] @ np.concatenate(attended)
            gate, up = np.split(own["gate_up.weight"] @ norm(x[i], own["mlp_norm"]), 2)
            x[i] = x[i] + own["down.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    return keys, values, [weights["head.weight"] @ norm(row, weights["norm"]) for row in x]


def literal_steps(model, prompt, decoding):
    """Every column of the study's `steps`, one number at a time."""
    generation = generate(model, prompt, FullRecompute(), decoding, trace=True)
    tokens, decoded, found, before = [*prompt, *[model.spec.mask_id] * decoding.gen_length], set(), [], None
    for record in [*generation.steps]:
        keys, values, logits = literal_pass(model, tokens)
        if before is not None:
            fresh, earlier, old = before
            masked = {row for row in range(len(prompt), len(tokens)) if row not in decoded}
            kinds = {
                "kept": set(range(len(tokens))) - fresh,
                "prompt": set(range(len(prompt))),
                "decoded": earlier,
                "masked": masked,
                "just_decoded": fresh,
            }
            row = found[-1]
            for (tensor, then, now), (kind, rows) in itertools.product(
                (("keys", old[0], keys), ("values", old[1], values)), kinds.items()
            ):
                cosines, lengths = [], []
                for layer, place in itertools.product(range(model.spec.layers), rows):
                    a, b = then[layer][place], now[layer][place]
                    cosines.append(1 - sum(a * b) / math.sqrt(sum(a * a)) / math.sqrt(sum(b * b)))
                    lengths.append(math.sqrt(sum((b - a) ** 2)) / math.sqrt(sum(a * a)))
                row[f"{tensor}_{kind}_cosine"] = sum(cosines) / len(cosines) if cosines else math.nan
                row[f"{tensor}_{kind}_l2"] = sum(lengths) / len(lengths) if lengths else math.nan
        entropies, doubts = [], []
        for place, token in zip(record.committed, record.tokens, strict=True):
            scores = logits[max(0, place - model.spec.shift)]
            share = np.exp(scores - scores.max())
            share /= share.sum()
            entropies.append(-sum(p * math.log(p) for p in share))
            doubts.append(1 - share[token])
        found.append(
            {
                "entropy_max": max(entropies),
                "entropy_mean": sum(entropies) / len(entropies),
                "doubt_max": max(doubts),
                "tokens": len(doubts),
            }
        )
        before = set(record.committed), set(decoded), (keys, values)
        for place, token in zip(record.committed, record.tokens, strict=True):
            tokens[place] = token
        decoded |= set(record.committed)
    return found[:-1]


@pytest.mark.parametrize(("family", "seed"), CASES)
def test_drift_is_that_of_a_literal_recomputation(family, seed):
    model = random_model(family, seed, torch.float64, layers=2)
    one = subject(model)
    study = Drift(prompts=seed % 2 + 1, high_share=0.25, rates=(0.25,), taus=(0.5,))
    steps = study.measure(one)["steps"]
    wanted = pd.DataFrame(
        [row for prompt in one.prompts(study.prompts) for row in literal_steps(model, prompt, THRESHOLD)]
    )
    assert len(steps) == len(wanted) > 3
    for column in wanted:
        np.testing.assert_allclose(steps[column], wanted[column], rtol=1e-8, atol=1e-12, err_msg=column)


@given(st.sampled_from(FAMILIES), st.integers(0, 50), st.sampled_from([None, 0.7]))
@settings(max_examples=12)
def test_the_passes_are_those_of_full_recompute(family, seed, threshold):
    model = random_model(family, seed, layers=2)
    rule = {"rule": "threshold", "threshold": threshold} if threshold else {}
    decoding = Decoding(12, block_length=6, **rule)
    prompt = random_prompt(model, 4, seed)
    seen = list(passes(model, prompt, decoding))
    generation = generate(model, prompt, FullRecompute(), decoding, trace=True)
    assert [one.commit.rows.tolist() for one in seen] == [step.committed for step in generation.steps]
    assert seen[-1].state.apply(seen[-1].commit).tokens[4:].tolist() == generation.tokens.tolist()
    for before, after in itertools.pairwise(seen):
        kept, own, decoded, masked, fresh = groups(before, after)
        assert (own.int() + decoded.int() + masked.int() + fresh.int() == 1).all() and (kept ^ fresh).all()
        assert fresh.nonzero().squeeze(1).tolist() == before.commit.rows.tolist()


def test_layer_drift_averages_to_the_drift_of_steps():
    study = Drift(prompts=2, high_share=0.25, rates=(0.25,), taus=(0.5,))
    measured = study.measure(subject(random_model("dream", 3)))
    by_layer = measured["layers"].groupby(["prompt", "step"])["values_kept_cosine"].mean()
    assert by_layer.tolist() == pytest.approx(measured["steps"]["values_kept_cosine"].tolist())
    assert (measured["layers"].query("layer == 0")["keys_kept_cosine"] < 1e-12).all(), "layer 0 sees the token alone"


def frames(entropy, drift, prompts=8, name="model"):
    """Steps of a study whose entropies and drifts are given."""
    n = len(entropy)
    columns = {
        f"{t}_{r}_{m}": drift
        for t in ("keys", "values")
        for m in ("cosine", "l2")
        for r in ("kept", "prompt", "decoded", "masked", "just_decoded")
    }
    steps = pd.DataFrame(
        {"model": name, "prompt": np.arange(n) % prompts, "step": np.arange(n) // prompts, "entropy_max": entropy}
        | {"entropy_mean": 1.0, "doubt_max": np.linspace(0, 1, n) % 0.1, "tokens": 1}
        | columns
    )
    return {
        "steps": steps,
        "layers": steps.drop(columns=["entropy_max", "entropy_mean", "doubt_max", "tokens"]).assign(layer=0),
    }


def test_drift_concludes_what_the_figures_say(tmp_path):
    rng = np.random.default_rng(0)
    entropy = rng.exponential(size=160)
    study = Drift(prompts=8, high_share=0.25, rates=(0.25,), taus=(0.5,))
    related = study.report(frames(entropy, entropy**2), tmp_path).conclusion
    assert "the more uncertain the tokens just decoded, the further" in related[0] and "1.00 [1.00, 1.00]" in related[0]
    assert "better than chance" in related[1] and "steps since refresh, random worse" in related[1]
    against = study.report(frames(entropy, 1 / entropy), tmp_path).conclusion
    assert "the less kept keys and values move" in against[0]
    assert "not shown to be better than chance" in against[1] and "random better" in against[1]
    unrelated = abs(np.argsort(np.argsort(entropy)) - 79.5)  # the same on both sides of the median
    assert "no relation is shown" in study.report(frames(entropy, unrelated), tmp_path).conclusion[0]


# -- statistics ------------------------------------------------------------------------------------------------------

values = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), min_size=4, max_size=25)


@given(values, st.integers(0, 9))
def test_weighted_statistics_are_those_of_repeated_observations(rows, seed):
    x, y, positive = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    positive = positive.astype(bool)
    weights = association.resamples(np.arange(len(x)) % 3, seed, count=4)
    figures = [f(x, y, weights) for f in (association.pearson, association.spearman)]
    figures.append(association.area(x, positive, weights))
    for number, weight in enumerate(weights.astype(int)):
        a, b, high = (np.repeat(column, weight) for column in (x, y, positive))
        if a.std() and b.std():
            assert figures[0][number] == pytest.approx(stats.pearsonr(a, b).statistic)
            assert figures[1][number] == pytest.approx(stats.spearmanr(a, b).statistic)
        else:
            assert np.isnan(figures[0][number]) and np.isnan(figures[1][number])
        if high.any() and not high.all():
            won = stats.mannwhitneyu(a[high], a[~high]).statistic
            assert figures[2][number] == pytest.approx(won / high.sum() / (~high).sum())
        else:
            assert np.isnan(figures[2][number])
    if positive.any() and not positive.all():
        false, true = association.roc(x, positive)
        assert np.trapezoid(true, false) == pytest.approx(figures[2][0])


def test_resamples_draw_whole_prompts_and_one_prompt_gives_no_interval():
    weights = association.resamples(["a", "b", "a", "c"], count=50)
    assert (weights[0] == 1).all() and (weights[:, 0] == weights[:, 2]).all() and len(np.unique(weights)) > 2
    found = association.estimate(
        association.pearson(np.arange(3.0), np.arange(3.0), association.resamples(list("aaa")))
    )
    assert str(found) == "1.00" and math.isnan(found.low)


def test_recall_at_a_rate_takes_ties_in_part():
    positive = np.array([True, False, True, False])
    assert association.caught(np.array([4.0, 3, 2, 1]), positive, 0.5) == 0.5
    assert association.caught(np.array([4.0, 3, 2, 1]), positive, 1) == 1
    assert association.caught(np.zeros(4), positive, 0.3) == pytest.approx(0.3), "a constant finds what chance finds"


# -- volatility ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_decoded_rows_by_age(family):
    model = random_model(family, 1, layers=2)
    full = list(passes(model, random_prompt(model, 6), Decoding(8, block_length=4)))
    changes, rest = value_changes(full)
    assert rest.numel() == 7 * 6, "the prompt's rows between 8 passes"
    ages = changes.query("layer == -1")["age"].value_counts().to_dict()
    assert ages == {age: 7 - age for age in range(1, 7)}, "one row a pass, first computed with its token in the next"
    assert (changes.query("layer == 0")["change"] < 1e-12).all(), "values of layer 0 are the token's own"
    first = full[0].commit.rows
    wanted = moved(full[2].cache.v, full[3].cache.v)[0, 1, first].item()
    assert wanted in changes.query("layer == 1 and age == 2")["change"].tolist()


@given(st.sampled_from(FAMILIES), st.integers(0, 30), st.integers(2, 6))
@settings(max_examples=10)
def test_partial_passes_of_one_layer_err_only_by_rows_left_out(family, seed, every):
    """With one layer a row's keys and values are its token's own: recomputing all decoded rows leaves no error."""
    model = random_model(family, seed, layers=1)
    full = list(passes(model, random_prompt(model, 5, seed), Decoding(8, block_length=4)))
    none, some, all_of_them = (list(partial_errors(model, full, k, every)) for k in (0, 1, 8))
    assert [one["step"] for one in none] == [step for step in range(8) if step % every]
    assert max(one["error"] for one in all_of_them) < 1e-10 < max(one["error"] for one in none)
    assert all(one["agreement"] == 1 for one in all_of_them)
    assert sum(one["rows"] for one in none) < sum(one["rows"] for one in some)


def test_the_newest_lower_the_error_and_the_conclusion_says_by_how_much(tmp_path):
    study = Volatility(prompts=3, rest=0.95, ks=(0, 2, 8), refresh_every=4)
    measured = together([study.measure(subject(random_model("llada", 2), name=name)) for name in ("one", "two")])
    result = study.report(measured, tmp_path)
    table = result.tables[1].frame
    assert table["k"].tolist() == [0, 2, 8] * 2 and table["less_error"].tolist()[:3] == table["less_error"].tolist()[3:]
    assert (table.query("k == 0")["less_error"] == 0).all() and (table.query("k == 8")["less_low"] > 0).all()
    assert len(result.conclusion) == 4 and "newest lowers the error of partial passes by" in result.conclusion[1]
    assert all(path.is_file() and path.with_suffix(".svg").is_file() for path in result.plots.values())


# -- cost and overhead -----------------------------------------------------------------------------------------------


def test_cost_knows_the_flops_and_finds_the_knee():
    one = subject(random_model("dream", 0, torch.float32, layers=1))
    steps = Cost(lengths=(16, 32), shares=(0.01, 0.5, 1), read=4, repeats=2).measure(one)["steps"]
    assert steps[["length", "rows"]].values.tolist() == [[16, 2], [16, 8], [16, 16], [32, 2], [32, 16], [32, 32]]
    assert (steps["seconds"] > 0).all()
    assert all(part["flops"].is_monotonic_increasing for _, part in steps.groupby("length"))
    made = pd.DataFrame(
        {"model": "m", "length": 100, "rows": [1, 10, 50, 100], "seconds": [1.0, 1.05, 3, 6], "flops": [1, 10, 50, 100]}
    )
    table = shares(made)
    assert table["flops_share"].tolist() == [0.01, 0.1, 0.5, 1] and table["time_share"].tolist() == pytest.approx(
        [1 / 6, 0.175, 0.5, 1]
    )
    (knee,) = knee_table(table).to_dict("records")
    assert (knee["knee_rows"], knee["largest_gain"], knee["largest_gain_by_flops"]) == (10, 6, 100)


def overhead(**changes):
    axes = {"rows": [24, 48], "layers": [1, 2], "vocab": [32, 64], "hidden": [16, 32]}
    base = {"rows": 24, "layers": 1, "vocab": 32, "hidden": 16}
    methods = ("method=entropycache method.tau=inf", "method=full_recompute")
    keys = {"base": base, "axes": axes, "head_dim": 16, "gen_length": 8, "steps": 4, "repeats": 2, "seconds": 0}
    return Overhead(**{"methods": methods} | keys | changes)


def axes(**changes):
    return overhead(axes={"rows": [24, 48], "layers": [1, 2], "vocab": [32, 64], "hidden": [16, 32]} | changes)


def test_overhead_has_no_decision_to_time_where_every_step_refreshes():
    with pytest.raises(ValueError, match="method=entropycache made no partial step.*method.tau=inf"):
        overhead().of_method("method=entropycache", EntropyCache(-1, 2), "cpu")


def slopes(**changes):
    line = {"from": 1, "to": 4, "change": 3.0, "slope": 1.0, "formula": 1.0, "correlation": 1.0}
    methods = ("entropycache", "d2cache", "elastic_cache")
    return pd.DataFrame(
        {"method": method, "axis": axis} | line | (changes if method == "d2cache" else {})
        for method in methods
        for axis in ("rows", "layers", "vocab", "hidden")
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "d2Cache's does, 1 over rows"),
        ({"change": 0.001}, "d2Cache's does not, 1 over rows"),  # in line with its formula, but it does not grow
        ({"correlation": 0.5}, "d2Cache's does not, 0.5 over rows"),
        ({"correlation": math.nan}, "d2Cache's does not, – over rows"),
    ],
)
def test_only_what_grows_in_line_with_its_formula_is_said_to(changes, said):
    assert said in conclude(slopes(**changes))[1]


def test_two_points_correlate_with_anything():
    assert math.isnan(correlation(pd.Series([1.0, 2.0]), pd.Series([1.0, 1.001])))
    assert correlation(pd.Series([1.0, 2.0, 3.0]), pd.Series([3.0, 5.0, 7.0])) == pytest.approx(1)


def test_overhead_measures_every_shape_once_and_compares_slopes(tmp_path):
    study, told = overhead(), []
    policies = {
        "method=entropycache method.tau=inf": EntropyCache(math.inf, 2),
        "method=full_recompute": FullRecompute(),
    }
    measured = study.measure(policies, progress=told.append)
    points = measured["points"]
    assert sum(told) == len(policies) and len(points) == 10
    cached = points[points["method"] == "entropycache"]
    assert (cached["decision"] > 0).all() and (cached["computed"] < cached["rows"]).all()
    made = points.assign(decision=1e-6 * points["vocab"])  # grows with the vocabulary and nothing else
    result = study.report({"points": made}, tmp_path)
    slopes = result.tables[0].frame.set_index("axis")
    assert slopes["slope"].round(6).to_dict() == {"rows": 0, "layers": 0, "vocab": 1, "hidden": 0}
    assert slopes["formula"].round(6).to_dict() == slopes["slope"].round(6).to_dict()
    assert "does not change from 24 to 48 rows" in result.conclusion[0] and "vocabulary is 1.00" in result.conclusion[0]


def test_formulas_count_what_docs_say():
    study = overhead(gen_length=8, steps=4)
    point = {"rows": 100, "layers": 3, "vocab": 1000, "hidden": 32}
    assert study.formula("entropycache", point, 20) == 2 * 1000
    assert study.formula("d2cache", point, 20) == 3 * (2 + 1) * 20 * 100 + 64
    assert study.formula("elastic_cache", point, 20) == 3 * (2 * 20 * 100 + 4 * 100)
    assert slope(pd.Series([1.0, 2, 4]), pd.Series([3.0, 12, 48])) == pytest.approx(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Drift(1, 1.5, (0.5,), ()), "1.5"),
        (lambda: Volatility(1, 0.95, (1, 2), 4), r"\[1, 2\] must begin with 0"),
        (lambda: Volatility(1, 0.95, (0,), 1), "study.refresh_every 1 must be a whole number of steps, 2 or above"),
        (lambda: Volatility(1, 0.95, (0, 1.5), 4), "study.ks 1.5 must be a whole number"),
        (lambda: Drift(1, "abc", (0.5,), (1,)), "study.high_share 'abc' must be a share"),
        (lambda: Drift(1, 0.5, 0.1, (1,)), "study.rates=0.1 must be a list"),
        (lambda: Drift(1, 0.5, (0.5,), (1,), seed="abc"), "study.seed 'abc' must be a whole number"),
        (lambda: Cost((1,), (1,), 4, 1), "study.lengths 1 must be a whole number of rows, 2 or above"),
        (lambda: Cost((8,), (1, 2), 4, 1), "study.shares 2 must be above 0"),
        (lambda: Cost((8,), (1,), 4, 2.5), "study.repeats 2.5 must be a whole number"),
        (lambda: Volatility(1, 0.95, (), 4), r"study.ks=\(\) must be a list"),
        (lambda: Drift(1, 0.5, (0.5,), ()), r"study.taus=\(\) must be a list"),
        (lambda: Cost((), (1,), 4, 1), r"study.lengths=\(\) must be a list"),
        (lambda: overhead(methods=("method=d2cache",)), "must have entropycache among them"),
        (lambda: overhead(methods=("method=entropycache", "method=entropycache method.k=0")), "stands there twice"),
        (lambda: overhead(methods="entropycache"), "study.methods=entropycache must be a list"),
        (lambda: overhead(methods=("entropycache",)), "'entropycache' must be overrides to run.yaml"),
        (lambda: overhead(seconds=math.nan), "study.seconds nan must be a time"),
        (lambda: overhead(seconds="abc"), "study.seconds 'abc' must be a time"),
        (lambda: overhead(steps=1), "study.steps 1 must be a whole number, 2 or above"),
        (lambda: axes(rows=[]), r"study.axes.rows=\[\] must be a list"),
        (lambda: axes(layers=[0, 1]), "study.axes.layers 0 must be a whole number, 1 or above"),
        (lambda: axes(layers=[1.5, 2]), "study.axes.layers 1.5 must be"),
        (lambda: axes(vocab=[2, 3]), "study.axes.vocab 2 must be a whole number, 3 or above"),
        (lambda: axes(rows=[24, 24]), "study.axes.rows=.* must hold two different values"),
        (lambda: Subject("m", None, [], {}, {}).prompts(-3), "study.prompts -3 must be a whole number of prompts"),
        (lambda: Cost((8,), (0.5,), 4, 1), "hold 1"),
        (lambda: overhead(gen_length=24), "24 rows leave no prompt"),
        (lambda: overhead(head_dim=12), "head_dim=12"),
        (lambda: overhead(repeats=1), "study.repeats 1 must be"),
        (lambda: Subject("m", None, [], {}, {}).prompts(3), "study.prompts=3, but m has 0 questions"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_figure_that_many_resamples_lack_has_no_interval():
    """Of two prompts, half of the resamples draw one alone: what can be had of the others is no fair draw."""
    assert math.isnan(estimate(np.array([1.0] + [1.0] * 60 + [math.nan] * 40)).low)
    assert estimate(np.array([1.0] + [1.0] * 96 + [math.nan] * 4)).low == 1.0


class Failing:
    name = "failing"

    def report(self, measured, folder):
        (folder / "half.png").write_text("half a plot")
        raise ValueError("no")


def test_a_study_that_fails_leaves_the_earlier_one(tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(StoreError, match="cannot write"):
        folder_of(tmp_path / "results", "embedded", "drift")
    folder = folder_of(tmp_path, "embedded", "drift")
    (folder / "study.json").write_text("{}")
    with pytest.raises(ValueError, match="no"):
        write_study(Failing(), {}, folder, {})
    assert [path.name for path in folder.iterdir()] == ["study.json"] and list(folder.parent.iterdir()) == [folder]
