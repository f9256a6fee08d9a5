"""What the report says of its figures, and published figures beside them."""

import json
from pathlib import Path

import pytest
import yaml

from evaluation.files import StoreError
from evaluation.report.decoding_picture import spans, traces
from evaluation.report.entries import Entry, entries, main_entries
from evaluation.report.findings import findings
from evaluation.report.plots import interval
from evaluation.report.reference import claim_rows, read_published, table_rows
from evaluation.report.runs import read_runs
from evaluation.report.style import STYLES, rank, style, title
from evaluation.statistics import mcnemar
from tests.conftest import ROOT, SHARED
from tests.evaluation import synthetic_runs as made
from tests.evaluation.synthetic_runs import FULL, MAIN, ONE_TOKEN, THRESHOLD, config, write_run, write_speed

REFERENCE = ROOT / "conf" / "reference"
MODEL, BENCHMARK = "tiny_llada", "mini_gsm8k"


def rows_of(root: Path) -> list[Entry]:
    return main_entries(entries(read_runs(root)), None)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[Entry]:
    root = tmp_path_factory.mktemp("runs")
    for place, (method, decoding) in enumerate(MAIN):
        write_run(root, config(MODEL, BENCHMARK, method, decoding), accuracy=0.85, traced=place == len(MAIN) - 1)
    write_speed(root, MODEL, BENCHMARK)
    return rows_of(root)


def sentence(found: list[str], beginning: str) -> str:
    (one,) = [line for line in found if beginning in line]
    return one


# -- sentences -------------------------------------------------------------------------------------------------------


def test_speedup_is_said_with_its_parts_and_accuracy(rows):
    said = sentence(findings(rows, None), "over one-token full recompute")
    row = next(entry for entry in rows if entry.method == "entropycache").speedup
    assert f"{BENCHMARK} {row.total.value:.2f}× [{row.total.low:.2f}, {row.total.high:.2f}]" in said
    assert f"= {row.caching.value:.2f}× by caching · {row.parallel.value:.2f}× by parallel decoding, accuracy " in said


def test_order_of_speed_is_that_of_the_figures(rows):
    said = sentence(findings(rows, None), "By mean rank")
    order = sorted((e for e in rows if e.total_speedup), key=lambda e: -e.total_speedup.value)
    names = [f"{title(entry.method)}, {entry.decoding}" for entry in order]
    assert said.endswith(f"By mean rank: {'; '.join(names)}.")
    assert f"{names[0]} on 1 of 1" in said


def test_slowdowns_are_named(tmp_path):
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), (FULL, THRESHOLD), (made.PREFIX, THRESHOLD)], slower=9)
    found = findings(rows_of(tmp_path), None)
    assert "Fast-dLLM (prefix), threshold 0." in sentence(found, "Slower than one-token full recompute")
    assert not [line for line in found if line.startswith("Caching costs more")]


def test_caching_that_costs_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(made.COSTS, ("d2cache", "threshold"), (1.4, 0.4, 0.05, 0.12))
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), (FULL, THRESHOLD), (made.D2CACHE, THRESHOLD)])
    found = findings(rows_of(tmp_path), None)
    assert "d2Cache, threshold 0." in sentence(found, "Caching costs more than it saves")
    assert not [line for line in found if line.startswith("Slower")]


def test_accuracy_that_differs_is_named_with_its_p(tmp_path):
    folders = [
        write_run(tmp_path, config(MODEL, BENCHMARK, FULL, ONE_TOKEN), n=60, accuracy=0.95),
        write_run(tmp_path, config(MODEL, BENCHMARK, made.PREFIX, THRESHOLD), n=60, accuracy=0.3),
    ]
    first, second = (json.loads((folder / "scores.json").read_text())["samples"] for folder in folders)
    test = mcnemar([one["strict"]["correct"] for one in first], [one["strict"]["correct"] for one in second])
    said = sentence(findings(rows_of(tmp_path), None), "Accuracy differs")
    assert f"p = {test.p:.2g}, right alone: reference {test.only_first}, method {test.only_second}" in said
    assert "0.1 would do so by chance" in said


def test_equal_accuracy_is_said_to_be_so(rows):
    assert "6 rows, 50 samples or more" in sentence(findings(rows, None), "No row's accuracy differs")


@pytest.mark.parametrize(
    ("shares", "order", "size"),
    [
        ((0.004, 0.1, 0.2), "is as published", "EntropyCache 0.40 % (published 0.50 %: of the size published)"),
        (
            (0.15, 0.1, 0.2),
            "is not as published (EntropyCache < d2Cache",
            "EntropyCache 15.0 % (published 0.50 %: larger",
        ),
        ((0.001, 0.3, 0.2), "is not as published", "d2Cache 30.0 % (published 9.20 %: larger than published)"),
    ],
)
def test_decision_shares_are_held_against_the_paper(tmp_path, monkeypatch, shares, order, size):
    methods = ((made.entropy_cache(), THRESHOLD), (made.D2CACHE, THRESHOLD), (made.ELASTIC, made.SLIDING))
    for (method, decoding), share in zip(methods, shares, strict=True):
        monkeypatch.setitem(made.COSTS, (method["name"], decoding["name"]), (0.5, 0.5, 0.1, share))
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), *methods])
    said = sentence(findings(rows_of(tmp_path), read_published(REFERENCE)), "spent deciding")
    assert order in said and size in said


def test_orders_are_held_against_published_tables(rows):
    """Published: Elastic-Cache ahead of Fast-dLLM in 5 of 12 settings; here behind both of its variants."""
    said = sentence(findings(rows, read_published(REFERENCE)), "is faster than")
    assert "Elastic-Cache is faster than Fast-dLLM in 5 of 12 published settings and in 0 of 2 here: the same" in said


def test_steps_that_cost_more_than_their_rows_are_explained(rows):
    said = sentence(findings(rows, None), "does not get cheaper in proportion")
    assert "Elastic-Cache 45.0 % of the rows" in said and "Fast-dLLM (prefix)" not in said


def test_nothing_is_said_of_nothing(tmp_path):
    tmp_path.joinpath("runs").mkdir()
    assert findings(rows_of(tmp_path / "runs"), read_published(REFERENCE)) == []


# -- published figures -----------------------------------------------------------------------------------------------


def test_claims_stand_beside_the_range_measured(rows):
    table = claim_rows(read_published(REFERENCE), rows)
    claim = table[(table["quantity"] == "speedup") & (table["model"] == "LLaDA-8B-Instruct")].iloc[0]
    value = next(entry for entry in rows if entry.method == "entropycache").total_speedup.value
    assert (claim["published"], claim["rows_here"]) == (15.2, 1)
    assert claim["here_low"] == claim["here_high"] == pytest.approx(value)
    assert "2603.18489" in claim["source"] and claim["device"] == "RTX 3090"
    other = table[table["model"] == "Dream-v0-Instruct-7B"]
    assert (other["rows_here"] == 0).all() and other["here_low"].isna().all()


def test_published_table_stands_beside_rows_of_its_kind(rows):
    table = table_rows(read_published(REFERENCE), rows)
    assert set(table["model"]) == {"LLaDA-8B-Instruct"}
    one = table[table["method"] == "full_recompute"].iloc[0]
    assert one["here"] == "tiny_llada, mini_gsm8k, full_recompute, one_token" and one["published_speedup"] == 1
    fast = table[table["method"] == "Fast-dLLM"].iloc[0]
    assert (fast["published_speedup"], fast["published_accuracy"]) == pytest.approx((47.88 / 6.58, 0.7788))


@pytest.mark.shared
def test_published_figures_are_those_of_their_sources():
    import csv

    published = read_published(REFERENCE)
    folder = SHARED / "reference"
    with (folder / "published_tables.csv").open() as file:
        wanted = [
            (r["model"], r["benchmark"], r["gen_length"], r["method"], float(r["tokens_per_second"]))
            for r in csv.DictReader(file)
        ]
    keys = ("model", "benchmark", "gen_length", "method", "tokens_per_second")
    assert [tuple(str(row[k]) if k == "gen_length" else row[k] for k in keys) for row in published.rows] == wanted
    with (folder / "published_claims.csv").open() as file:
        wanted = [(r["model"] or None, r["scope"], r["quantity"], float(r["value"])) for r in csv.DictReader(file)]
    assert [(c["model"], c["scope"], c["quantity"], c["value"]) for c in published.claims] == wanted


def test_published_file_without_a_source_is_refused(tmp_path):
    names = yaml.safe_load((REFERENCE / "names.yaml").read_text())
    (tmp_path / "names.yaml").write_text(yaml.safe_dump(names))
    (tmp_path / "some.yaml").write_text("claims: []\n")
    with pytest.raises(StoreError, match=r"some\.yaml names no source"):
        read_published(tmp_path)
    (tmp_path / "some.yaml").write_text("source: x\ncolumns: [a, b]\nrows: [[1]]\n")
    with pytest.raises(StoreError, match=r"\[1\] has not one value for each"):
        read_published(tmp_path)


# -- looks -----------------------------------------------------------------------------------------------------------


def test_methods_are_told_apart_by_colour_and_in_grey():
    looks = [look for name, look in STYLES.items() if name != "fast_dllm"]  # the variant that stands for both
    assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(looks)


def test_every_method_of_conf_has_a_style_and_a_place():
    names = [yaml.safe_load(path.read_text())["name"] for path in sorted((ROOT / "conf" / "method").glob("*.yaml"))]
    assert set(names) <= set(STYLES)
    assert rank("unheard_of")[0] > max(rank(name)[0] for name in names)
    assert style("entropycache(tau=0.1)") == style("entropycache") and title("d2cache(x=1)") == "d2Cache(x=1)"


def test_interval_lengths():
    assert interval(2.0, 1.5, 3.0) == [[0.5], [1.0]]
    assert interval(2.0, None, 3.0) is None


def test_spans_of_rows():
    assert spans([1, 2, 3, 7, 9, 10]) == [[1, 3], [7, 7], [9, 10]] and spans([]) == []


def test_trace_says_what_a_row_is_in_each_step(rows):
    (trace,) = traces(rows)
    states = trace.states()
    assert states.shape == (16, 56) and trace.prompt == 24
    assert (states[0, :24] == 1).all() and (states[0, 24:26] == 3).all() and (states[0, 26:40] == 2).all()
    assert (states[1, :24] == 0).all() and (states[1, 24:26] == 1).all() and (states[1, 26:28] == 3).all()
    assert sum((line == 3).sum() for line in states) == 32
