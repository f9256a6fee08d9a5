"""Reading runs back: what is found, what is reported, and that damage in one hides no other."""

import json

import pytest
import yaml

from evaluation import files, store
from evaluation.files import StoreError
from evaluation.runs import load_run, load_runs, newest
from evaluation.store import RunStore, run_key
from tests.evaluation.example_runs import CONFIG, MANIFEST, changed, complete, sample

pytestmark = pytest.mark.usefixtures("one_code_version")


DAMAGE = {
    "config.yaml": b"{: [",
    "manifest.json": b"{",
    "samples.jsonl": b'{"index": 0}\nhalf\n{"index": 2}\n',
    "DONE": b"?",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_one_run_is_reported_and_hides_no_other(tmp_path, name):
    complete(tmp_path, changed("seed", 1), scores={"n": 5})
    broken = complete(tmp_path, scores={"n": 5}).folder
    (broken / name).write_bytes(DAMAGE[name])
    statuses = {run.folder: run.status for run in load_runs(tmp_path, {"benchmark.name": "mini_gsm8k"})}
    assert statuses.pop(broken) == "damaged"
    assert list(statuses.values()) == ["done"]
    assert name in load_run(broken).note
    assert "\n" not in load_run(broken).note


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "samples.jsonl"])
def test_a_finished_run_that_lost_a_file_is_damaged(tmp_path, name):
    folder = complete(tmp_path, scores={"n": 5}).folder
    (folder / name).unlink()
    run = load_run(folder)
    assert run.status == "damaged" and f"{name} is gone" in run.note


def test_scores_that_cannot_be_read_are_made_again(tmp_path):
    folder = complete(tmp_path, scores={"n": 5}).folder
    (folder / "scores.json").write_bytes(b'{"n": ')
    run = load_run(folder)
    assert (run.status, run.scores) == ("done", None)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"id": "a"}\n', files.as_line(sample(0)) * 2, files.as_line(sample(0))],
    ids=["nothing", "no index", "one index twice", "samples lost"],
)
def test_samples_changed_after_the_end_are_damage(tmp_path, content):
    folder = complete(tmp_path).folder
    (folder / "samples.jsonl").write_bytes(content)
    assert load_run(folder).status == "damaged"


def test_a_damaged_run_is_not_written_on(tmp_path):
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        run.append(sample(0))
    (run.folder / "samples.jsonl").write_bytes(DAMAGE["samples.jsonl"])
    for _ in range(2):  # the first refusal leaves no lock and no FAILED
        with pytest.raises(StoreError, match="line 2"):
            RunStore(tmp_path).open(CONFIG, MANIFEST)
    assert (run.folder / "samples.jsonl").read_bytes() == DAMAGE["samples.jsonl"]


def test_runs_are_found_by_what_they_were_set_to(tmp_path):
    for tau in (0.1, 0.5, 2.0):
        complete(tmp_path, changed("method.tau", tau))
    complete(tmp_path, CONFIG | {"method": {"name": "full_recompute"}})

    def found(**filters):
        runs = load_runs(tmp_path, {key.replace("__", "."): value for key, value in filters.items()})
        return [run.config["method"].get("tau") for run in runs]

    assert len(found()) == 4
    assert found(method__tau=0.5) == [0.5]
    assert sorted(found(method__tau=[0.1, 2])) == [0.1, 2.0]
    assert found(method__name="full_recompute") == [None]
    assert found(method__name="full_recompute", method__tau=0.5) == []
    assert len(found(model__name="tiny_llada")) == 4
    with pytest.raises(StoreError, match="nowhere"):
        load_runs(tmp_path / "nowhere")


def test_a_loaded_run_knows_under_what_conditions_it_was_made(tmp_path):
    (run,) = load_runs(complete(tmp_path, scores={"n": 5}).folder.parents[3])
    assert run.conditions["method"] == CONFIG["method"]
    assert run.conditions["data_sha256"] == "d"
    assert "results" not in run.conditions
    assert run.scores == {"n": 5}
    assert run.key == run_key(CONFIG)
    assert yaml.safe_load((run.folder / "config.yaml").read_text()) == CONFIG


def test_of_runs_by_several_versions_of_the_code_the_newest_counts(tmp_path, monkeypatch):
    other = complete(tmp_path, changed("seed", 1)).folder
    old = complete(tmp_path).folder
    record = json.loads((old / "manifest.json").read_text())
    record["sessions"][0]["started"] = "2001-01-01T00:00:00+00:00"
    files.write_json(old / "manifest.json", record)
    monkeypatch.setattr(store, "code_version", lambda: "later")
    new = complete(tmp_path).folder
    runs = load_runs(tmp_path)
    assert len(runs) == 3
    assert {run.folder for run in newest(runs)} == {other, new}


def test_the_manifest_says_where_the_numbers_came_from(tmp_path):
    (run,) = load_runs(complete(tmp_path).folder.parents[3])
    assert run.manifest["key"] == run_key(CONFIG)
    assert run.manifest["code_version"] == store.code_version()
    assert {key: run.manifest[key] for key in MANIFEST} == MANIFEST
    (session,) = run.manifest["sessions"]
    assert {"commit", "dirty"} == set(session["git"])
    assert session["packages"]["torch"]
    assert session["started"].endswith("+00:00")
