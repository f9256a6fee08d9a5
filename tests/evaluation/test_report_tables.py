"""The report's tables: which run stands in which row, with which figures, and what is said of the others."""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from evaluation.files import StoreError
from evaluation.report import MAIN_COLUMNS, format_table, main_rows, read_runs, write_report
from evaluation.report.entries import entries, main_entries, together
from evaluation.report.formats import figure, latex, main_csv, percent, to_latex, to_markdown
from evaluation.report.notes import notes
from evaluation.report.tables import accuracy_rows, overhead_rows, sweep_rows
from evaluation.statistics import mcnemar, paired_ratio
from tests.evaluation.synthetic_runs import (
    FULL,
    ONE_TOKEN,
    PREFIX,
    SLIDING,
    THRESHOLD,
    config,
    entropy_cache,
    write_paper_table,
    write_run,
    write_speed,
    write_sweep,
)

DEFAULTS = {"entropycache": {"name": "entropycache", "tau": 0.5, "k": 16}}
MODEL, BENCHMARK = "tiny_llada", "mini_gsm8k"


def setting(method, decoding=THRESHOLD, **changes):
    """A run's configuration, with changes to its groups: setting(FULL, decoding={"block_length": 8})."""
    base = config(MODEL, BENCHMARK, method, decoding)
    return {key: value | changes[key] if key in changes else value for key, value in base.items()}


def table_of(root: Path):
    return main_rows(read_runs(root), DEFAULTS)


@pytest.fixture(scope="module")
def paper(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_paper_table(root)
    return root


def test_main_table_has_exactly_its_columns_and_a_row_a_setting(paper):
    text = main_csv(table_of(paper))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == MAIN_COLUMNS
    assert [(row["method"], row["decoding"]) for row in rows] == [
        ("full_recompute", "one_token"),
        ("full_recompute", "threshold"),
        ("fast_dllm_prefix", "threshold"),
        ("fast_dllm_dual", "threshold"),
        ("d2cache", "threshold"),
        ("elastic_cache", "sliding_threshold"),
        ("entropycache", "threshold"),
    ]


def test_figures_are_those_of_the_files(paper):
    """Each figure of a row against its definition, from the raw files."""
    row = table_of(paper).set_index("method").loc["entropycache"]
    measured = [json.loads(path.read_text()) for path in paper.glob("*/*/speed/*/speed.json")]
    speed = max(measured, key=lambda record: len(record["prompts"]))
    of = {(r["method"], r["decoding"]): r for r in speed["rows"]}
    one, same = of["full_recompute", "one_token"], of["full_recompute", "threshold"]
    mine = of["entropycache", "threshold"]
    total = paired_ratio(one["seconds"], mine["seconds"])
    assert (row["speedup"], row["speedup_low"], row["speedup_high"]) == (total.value, total.low, total.high)
    assert row["speedup_from_caching"] == pytest.approx(sum(same["seconds"]) / sum(mine["seconds"]))
    assert row["speedup_from_caching"] * row["speedup_from_parallel"] == pytest.approx(row["speedup"])
    assert row["tokens_per_second"] == pytest.approx(sum(mine["tokens"]) / sum(mine["seconds"]))
    assert row["decision_share"] == pytest.approx(0.006)
    rates = row["recompute_ratio"], row["refresh_rate"], row["tokens_per_forward"]
    assert rates == pytest.approx((0.3, 2 / 16, 20 / 16))


def test_reference_row_is_one_and_its_accuracy_has_an_error(paper):
    row = table_of(paper).iloc[0]
    assert row["speedup"] == 1 and row["n"] == 50
    assert 0 < row["accuracy_se"] < 0.1


def test_slowdown_is_printed_as_it_is(tmp_path):
    """M3: a method slower than its reference."""
    write_run(tmp_path, setting(FULL, ONE_TOKEN))
    write_run(tmp_path, setting(PREFIX))
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), (PREFIX, THRESHOLD)], slower=8.0)
    table = table_of(tmp_path)
    assert table["speedup"].iloc[1] < 1
    assert "0.5" in format_table(table).splitlines()[-1].split("×")[0]


def test_unfinished_run_is_starred_without_figures_and_left_out_of_the_csv(tmp_path):
    """R2: 600 of 1000 samples are there."""
    write_run(tmp_path, setting(FULL, ONE_TOKEN), n=1000, made=600)
    write_run(tmp_path, setting(entropy_cache()))
    table = table_of(tmp_path)
    assert "600 of 1000 *" in format_table(table)
    assert table["accuracy"].isna().tolist() == [True, False]
    assert len(list(csv.DictReader(io.StringIO(main_csv(table))))) == 1
    assert any("unfinished, 600 of 1000" in note for note in notes(read_runs(tmp_path), entries(read_runs(tmp_path))))


def test_failed_job_of_a_sweep_shows_as_failed_and_the_others_stand(tmp_path):
    """R3: the second of three jobs failed."""
    write_run(tmp_path, setting(entropy_cache(0.1)), n=20)
    write_run(tmp_path, setting(entropy_cache(0.5)), n=20, made=5, failed="boom")
    write_run(tmp_path, setting(entropy_cache(2.0)), n=20)
    runs = read_runs(tmp_path)
    table = sweep_rows(entries(runs))
    assert table["state"].tolist() == ["done", "failed", "done"]
    assert "failed *" in format_table(main_rows(runs, None))
    assert any("failed, boom (after 5 of 20 samples)" in note for note in notes(runs, entries(runs)))


def test_runs_that_failed_for_one_reason_share_a_note(tmp_path):
    for tau in (0.1, 0.5, 2.0):
        write_run(tmp_path, setting(entropy_cache(tau)), made=0, failed="no such checkpoint" if tau < 1 else "boom")
    said = notes(runs := read_runs(tmp_path), entries(runs))
    assert len(said) == 2
    assert sum(" and 1 more: failed, no such checkpoint" in note for note in said) == 1


def damage_samples(folder: Path) -> None:
    path = folder / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-40])


def damage_scores(folder: Path) -> None:
    scores = json.loads((folder / "scores.json").read_text())
    (folder / "scores.json").write_text(json.dumps(scores | {"samples": scores["samples"][1:]}))


def drop_a_field(folder: Path) -> None:
    scores = json.loads((folder / "scores.json").read_text())
    (folder / "scores.json").write_text(json.dumps({key: value for key, value in scores.items() if key != "shown"}))


def change(folder: Path, name: str, **fields: object) -> None:
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | fields))


@pytest.mark.parametrize(
    "harm",
    [
        damage_samples,
        damage_scores,
        drop_a_field,
        lambda folder: (folder / "config.yaml").write_text("model: [\n"),
        lambda folder: (folder / "config.yaml").write_text("method: entropycache\n"),
        lambda folder: (folder / "manifest.json").write_bytes(b'{"samples": 5'),
        lambda folder: change(folder, "manifest.json", samples="x"),
        lambda folder: change(folder, "manifest.json", sessions=[1]),
        lambda folder: change(folder, "scores.json", accuracy={}),
    ],
)
def test_damage_in_one_run_is_reported_and_the_others_are_tabulated(tmp_path, harm):
    harm(write_run(tmp_path, setting(PREFIX)))
    write_run(tmp_path, setting(FULL, ONE_TOKEN))
    runs = read_runs(tmp_path)
    write_report(tmp_path, tmp_path.parent / f"{tmp_path.name}-report", "A report")
    states = main_rows(runs).set_index("method")["state"].to_dict()
    assert states == {"full_recompute": "done", "fast_dllm_prefix": "damaged"}
    (note,) = notes(runs, entries(runs))
    assert note.startswith(f"{BENCHMARK}/{MODEL}/fast_dllm_prefix/") and ": damaged, " in note and "\n" not in note
    assert str(tmp_path) not in note


def test_run_without_scores_is_not_scored_rather_than_wrong(tmp_path):
    write_run(tmp_path, setting(FULL, ONE_TOKEN), scored=False)
    table = table_of(tmp_path)
    assert table["state"].tolist() == ["not scored"] and table["accuracy"].isna().all()


def test_scores_that_cannot_be_read_are_none_and_the_note_says_what_makes_them(tmp_path):
    folder = write_run(tmp_path, setting(FULL, ONE_TOKEN))
    (folder / "scores.json").write_bytes(b"")
    runs = read_runs(tmp_path)
    assert main_rows(runs)["state"].tolist() == ["not scored"]
    (note,) = notes(runs, entries(runs))
    assert "scores.json cannot be read; score it with: python scripts/score.py" in note


@pytest.mark.parametrize(
    "harm",
    [
        lambda row: row["seconds"].pop(),
        lambda row: row.pop("flops"),
        lambda row: row["seconds"].__setitem__(0, 0.0),
    ],
    ids=["a second lost", "flops lost", "no time at all"],
)
def test_damaged_speed_file_costs_the_speedups_alone(tmp_path, harm):
    write_run(tmp_path, setting(FULL, ONE_TOKEN))
    folder = write_speed(tmp_path, MODEL, BENCHMARK)
    record = json.loads((folder / "speed.json").read_text())
    harm(record["rows"][0])
    (folder / "speed.json").write_text(json.dumps(record))
    write_report(tmp_path, tmp_path.parent / f"{tmp_path.name}-report", "A report")
    table = table_of(tmp_path)
    assert table["state"].tolist() == ["done"] and table["speedup"].isna().all()


def test_no_folder_is_an_error_that_names_it(tmp_path):
    with pytest.raises(StoreError, match="nowhere"):
        read_runs(tmp_path / "nowhere")


@pytest.mark.parametrize(("key", "value"), [("block_length", 8), ("temperature", 0.7), ("gen_length", 64)])
def test_speedup_of_another_decoding_is_refused_naming_the_key(tmp_path, key, value):
    """M4: the rows of a measurement differ in more than method and commit rule."""
    other = THRESHOLD | {key: value}
    write_run(tmp_path, setting(PREFIX, other))
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), (PREFIX, other)])
    runs = read_runs(tmp_path)
    assert main_rows(runs).set_index("method").loc["fast_dllm_prefix", "speedup"] != main_rows(runs)["speedup"].iloc[0]
    assert main_rows(runs).set_index("method")["speedup"].isna()["fast_dllm_prefix"]
    assert any("speedup refused" in note and f"decoding.{key}" in note for note in notes(runs, entries(runs)))


@pytest.mark.parametrize(
    ("change", "key"),
    [({"model": {"dtype": "float64"}}, "dtype"), ({"benchmark": {"num_fewshot": 2}}, "benchmark.num_fewshot")],
)
def test_a_run_is_not_timed_by_a_measurement_of_something_else(tmp_path, change, key):
    """M4: dtype, shots."""
    write_run(tmp_path, setting(PREFIX, **change))
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), (PREFIX, THRESHOLD)])
    runs = read_runs(tmp_path)
    row = main_rows(runs).set_index("method").loc["fast_dllm_prefix"]
    assert row["n"] == 50 and row["speedup"] != row["speedup"]
    assert any("speedup refused" in note and key in note for note in notes(runs, entries(runs)))


def test_sliding_window_may_stand_beside_blocks(tmp_path):
    """Elastic-Cache's window is its own; what caching gives is taken from full recompute with the same commit rule."""
    elastic = {"name": "elastic_cache", "gamma": 0.9, "tracked": 1}
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), (FULL, THRESHOLD), (elastic, SLIDING)])
    row = table_of(tmp_path).set_index("method").loc["elastic_cache"]
    assert row["speedup_from_caching"] == pytest.approx(row["speedup"] / row["speedup_from_parallel"])
    assert row["state"] == "timed, not scored"


def test_without_a_second_reference_the_speedup_is_not_split(tmp_path):
    write_speed(tmp_path, MODEL, BENCHMARK, [(FULL, ONE_TOKEN), (PREFIX, THRESHOLD)])
    row = table_of(tmp_path).set_index("method").loc["fast_dllm_prefix"]
    assert row["speedup"] > 1 and row["speedup_from_caching"] != row["speedup_from_caching"]


@pytest.mark.parametrize("prompts", [3, 9])
def test_each_table_takes_the_timing_of_its_own_rows(tmp_path, prompts):
    """The default setting stands among the methods and in the grid; both timed it, on other prompts."""
    write_sweep(tmp_path, MODEL, BENCHMARK)
    write_run(tmp_path, setting(entropy_cache()))
    for method, decoding in ((FULL, ONE_TOKEN), (PREFIX, THRESHOLD)):
        write_run(tmp_path, setting(method, decoding))
    main = [(FULL, ONE_TOKEN), (FULL, THRESHOLD), (PREFIX, THRESHOLD), (entropy_cache(), THRESHOLD)]
    write_speed(tmp_path, MODEL, BENCHMARK, main, prompts=prompts)
    found = entries(read_runs(tmp_path))
    rows, sweep = main_entries(found, DEFAULTS), together([e for e in found if e.method.startswith("entropycache")])
    assert {len(entry.timing.speed.prompts) for entry in rows} == {prompts}
    assert {len(entry.timing.speed.prompts) for entry in sweep} == {6} and len(sweep) == 6


def test_mcnemar_is_over_the_samples_that_both_have(tmp_path):
    """The reference has 50 samples, the other run the first 30 of them."""
    first = write_run(tmp_path, setting(FULL, ONE_TOKEN), n=50, accuracy=0.9)
    second = write_run(tmp_path, config(MODEL, BENCHMARK, PREFIX, THRESHOLD, limit=30), n=30, accuracy=0.5)
    right = [
        [score["strict"]["correct"] for score in json.loads((folder / "scores.json").read_text())["samples"]][:30]
        for folder in (first, second)
    ]
    row = accuracy_rows(entries(read_runs(tmp_path))).iloc[1]
    expected = mcnemar(*right)
    assert row["n_paired"] == 30
    found = row["only_reference"], row["only_method"], row["p"]
    assert found == (expected.only_first, expected.only_second, expected.p)


def test_mcnemar_between_other_prompts_is_refused(tmp_path):
    write_run(tmp_path, setting(FULL, ONE_TOKEN))
    write_run(tmp_path, setting(PREFIX, benchmark={"num_fewshot": 2}))
    runs = read_runs(tmp_path)
    assert accuracy_rows(entries(runs))["p"].isna().all()
    assert any("num_fewshot" in note for note in notes(runs, entries(runs)))


def test_sweep_stays_out_of_the_main_table_where_the_default_was_run(paper):
    assert table_of(paper)["method"].tolist().count("entropycache") == 1
    assert len(sweep_rows(entries(read_runs(paper)))) == 6


def test_sweep_alone_is_shown_with_its_settings(tmp_path):
    write_run(tmp_path, setting(entropy_cache(0.1, 4)))
    write_run(tmp_path, setting(entropy_cache(0.1, 8)))
    assert table_of(tmp_path)["method"].tolist() == ["entropycache(k=4)", "entropycache(k=8)"]


def test_benchmarks_stand_in_the_order_of_the_papers_table(tmp_path):
    for benchmark in ("mini_bbh_cot", "another", "mini_mbpp", "mini_gsm8k_cot", "mini_gsm8k"):
        write_run(tmp_path, config(MODEL, benchmark, FULL, ONE_TOKEN), n=4)
    order = ["mini_gsm8k", "mini_gsm8k_cot", "mini_mbpp", "mini_bbh_cot", "another"]
    assert table_of(tmp_path)["benchmark"].tolist() == order


def test_sweep_is_on_one_number_of_samples(tmp_path):
    write_sweep(tmp_path, MODEL, BENCHMARK)
    write_run(tmp_path, setting(entropy_cache()), n=200)
    table = sweep_rows(entries(read_runs(tmp_path)))
    assert set(table["n"]) == {50} and len(table) == 5


def test_of_runs_of_one_setting_the_largest_finished_one_counts(tmp_path):
    write_run(tmp_path, setting(FULL, ONE_TOKEN), n=50)
    write_run(tmp_path, config(MODEL, BENCHMARK, FULL, ONE_TOKEN, limit=20), n=20, started="2027-01-01")
    write_run(tmp_path, config(MODEL, BENCHMARK, FULL, ONE_TOKEN, limit=90), n=90, made=10)
    runs = read_runs(tmp_path)
    assert main_rows(runs)["n"].tolist() == [50]
    assert sum("not shown" in note for note in notes(runs, entries(runs))) == 2


def test_rows_of_several_code_versions_are_told(tmp_path):
    write_run(tmp_path, setting(FULL, ONE_TOKEN))
    folder = write_run(tmp_path, setting(PREFIX))
    record = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(record | {"code_version": "d" * 64}))
    runs = read_runs(tmp_path)
    assert any("2 versions of the code" in note for note in notes(runs, entries(runs)))


def test_filters(paper):
    runs = read_runs(paper, methods=["entropycache", "full_recompute"])
    assert {run.method for run in runs if not run.is_speed} == {"entropycache", "full_recompute"}
    for name in ("models", "benchmarks", "methods"):
        with pytest.raises(ValueError, match=f"{name}: no run under .* is of other; there are "):
            read_runs(paper, **{name: ["other"]})


def test_a_report_of_one_method_keeps_what_it_is_held_against(paper, tmp_path):
    """The reference's row and McNemar's test; an earlier report's tables that this one does not have are gone."""
    (tmp_path / "tau_k_grid.csv").write_text("of an earlier report")
    report = write_report(paper, tmp_path, "One method", models=[MODEL], methods=["fast_dllm_dual"])
    assert set(report.main["method"]) == {"full_recompute", "fast_dllm_dual"}
    table = pd.read_csv(tmp_path / "accuracy.csv")
    assert table[table["method"] == "fast_dllm_dual"]["n_paired"].min() > 0
    assert not (tmp_path / "tau_k_grid.csv").exists()


def test_steps_and_studies_that_cannot_be_read_cost_their_own_section_alone(tmp_path):
    folder = write_run(tmp_path / "runs", setting(FULL, ONE_TOKEN))
    (folder / "steps.parquet").write_bytes(b"PAR1")
    study = tmp_path / "report" / "studies" / "drift"
    study.mkdir(parents=True)
    (study / "study.json").write_text('{"name": ')
    with pytest.warns(UserWarning) as told:
        report = write_report(tmp_path / "runs", tmp_path / "report", "A report")
    assert report.main["state"].tolist() == ["done"]
    said = " ".join(str(warning.message) for warning in told)
    assert "steps.parquet cannot be read" in said and "make the study again" in said


def test_overhead_parts_add_up(paper):
    rows = main_entries(entries(read_runs(paper)), DEFAULTS)
    table = overhead_rows(rows).set_index("method")
    parts = [column for column in table if column.endswith("_share") and column != "decision_share"]
    assert table.loc["d2cache", "decision_share"] == pytest.approx(0.12)
    assert table[parts].sum(axis=1).tolist() == pytest.approx(table["decision_share"].tolist())


def test_terminal_table_fits_120_columns(paper):
    assert max(map(len, format_table(table_of(paper)).splitlines())) <= 120


def test_table_forms():
    import pandas as pd

    table = pd.DataFrame({"name": ["a|b", "c_d"], "value": [0.12345, None]})
    assert to_markdown(table) == "| name | value |\n| --- | ---: |\n| a\\|b | 0.1235 |\n| c_d | – |\n"
    text = to_latex(table, "100 %", "tab:x")
    assert r"c\_d & -- \\" in text and r"\caption{100 \%}" in text
    assert latex("τ ≤ 1 ± 2 {x}") == r"$\tau$ $\le$ 1 $\pm$ 2 \{x\}"
    numbers = (1234.56, 12.3456, 0.00012, 0.000012, 0.5, 100, 3.0, float("inf"), None)
    assert [figure(n) for n in numbers] == ["1235", "12.35", "0.0001", "1.2e-05", "0.5", "100", "3", "inf", "–"]
    assert [percent(value) for value in (0.0052, 0.123, 1.0)] == ["0.52 %", "12.3 %", "100.0 %"]


def test_report_of_the_same_runs_is_the_same_to_the_byte(tmp_path):
    for method, decoding in ((FULL, ONE_TOKEN), (FULL, THRESHOLD), (entropy_cache(), THRESHOLD)):
        write_run(tmp_path / "runs", setting(method, decoding), traced=method["name"] == "entropycache")
    write_speed(tmp_path / "runs", MODEL, BENCHMARK)
    first, second = (write_report(tmp_path / "runs", tmp_path / name, "A report") for name in ("a", "b"))
    files = sorted(path.relative_to(first.folder) for path in first.folder.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(second.folder) for path in second.folder.rglob("*") if path.is_file())
    assert [str(f) for f in files if (first.folder / f).read_bytes() != (second.folder / f).read_bytes()] == []
    names = {str(file) for file in files}
    forms = {
        f"{name}.{form}" for name in ("main_table", "accuracy", "decision_overhead") for form in ("csv", "md", "tex")
    }
    assert {*forms, "README.md", "index.html", f"plots/decoding_{MODEL}_{BENCHMARK}.svg"} <= names
