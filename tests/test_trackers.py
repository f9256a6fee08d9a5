"""Finished runs in MLflow and Weights & Biases, read back through their own interfaces where these are installed."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from evaluation.files import StoreError
from evaluation.trackers import Facts, MLflow, WandB
from tests.conftest import ROOT
from tests.evaluation.synthetic_runs import THRESHOLD, config, entropy_cache, write_run

SETTINGS = config("tiny_llada", "mini_gsm8k", entropy_cache(tau=0.25), THRESHOLD)


def installed(module):
    return pytest.mark.skipif(not importlib.util.find_spec(module), reason=f"{module} is not installed: an extra")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A finished run; the working directory is empty, so that a tracker's stray files would be seen."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield write_run(tmp_path / "runs", SETTINGS, n=10)
    assert list((tmp_path / "cwd").iterdir()) == []


def test_what_is_told_of_a_run(folder):
    facts = Facts.of(folder)
    scores = json.loads((folder / "scores.json").read_text())
    assert facts.name == "mini_gsm8k tiny_llada entropycache"
    assert facts.settings["method.tau"] == 0.25 and facts.settings["decoding.threshold"] == 0.9
    assert facts.metrics["accuracy_strict"] == scores["accuracy"]["strict"]["mean"]
    assert facts.metrics["generated_tokens"] == 200 and facts.metrics["decision_parts.plan"] > 0
    assert all(isinstance(value, float) for value in facts.metrics.values())
    assert facts.table["strict"].mean() == facts.metrics["accuracy_strict"]
    assert len(facts.plot().axes[0].collections[0].get_offsets()) == 10


def test_an_unfinished_run_is_refused(tmp_path):
    for made, scored in ((4, True), (10, False)):
        folder = write_run(tmp_path / f"{made}", SETTINGS, n=10, made=made, scored=scored)
        with pytest.raises(StoreError, match="only a finished and scored run can be tracked"):
            MLflow("unused").log_run(folder)


def test_a_tracker_that_is_not_installed_says_what_to_install(folder, monkeypatch):
    for tracker, module in ((MLflow("unused"), "mlflow"), (WandB("unused"), "wandb")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            RuntimeError, match=rf"tracker={module} needs {module}: pip install 'entropycache\[{module}\]'"
        ):
            tracker.log_run(folder)


def test_nothing_is_imported_where_no_tracker_is_used():
    loaded = "import sys, evaluation.trackers; print({'mlflow', 'wandb', 'torch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@installed("mlflow")
def test_mlflow_holds_the_run(folder, tmp_path):
    import mlflow

    tracker = MLflow(f"sqlite:///{tmp_path}/mlflow.db", artifacts=str(tmp_path / "artifacts"))
    assert tracker.log_run(folder) == (run_id := tracker.log_run(folder))
    (run,) = mlflow.search_runs(experiment_names=["entropycache"], output_format="list")
    facts = Facts.of(folder)
    assert run.info.run_id == run_id and run.data.metrics == pytest.approx(facts.metrics)
    assert run.data.params["method.tau"] == "0.25" and run.data.tags["run_key"] == folder.name
    table = mlflow.load_table("samples.json", run_ids=[run_id])
    assert table["text"].tolist() == facts.table["text"].tolist()
    names = {file.path for file in mlflow.MlflowClient().list_artifacts(run_id)}
    assert names == {"samples.json", "cost.png", "config.yaml", "manifest.json", "scores.json"}


@pytest.mark.slow
@installed("mlflow")
def test_jobs_may_send_their_runs_at_the_same_time(folder, tmp_path):
    """The first of them makes the store's tables, which the others must not do again."""
    settings = [config("tiny_llada", "mini_gsm8k", entropy_cache(tau=tau), THRESHOLD) for tau in (0.5, 1.0)]
    others = [write_run(tmp_path / "runs", other, n=5) for other in settings]
    send = "import sys, pathlib, mlflow; from evaluation.trackers import MLflow; print(flush=True); input(); "
    send += "print(MLflow(sys.argv[1]).log_run(pathlib.Path(sys.argv[2])))"
    store = f"sqlite:///{tmp_path}/store/mlflow.db"
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", send, store, str(run)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for run in (folder, *others)
    ]  # fmt: skip
    for job in jobs:
        job.stdout.readline()  # it has everything imported
    for job in jobs:
        job.stdin.write("\n")
        job.stdin.flush()
    ended = [(job.communicate()[1], job.returncode) for job in jobs]
    assert [code for _, code in ended] == [0, 0, 0], ended
    import mlflow

    mlflow.set_tracking_uri(store)
    assert len(mlflow.search_runs(experiment_names=["entropycache"], output_format="list")) == 3


@installed("mlflow")
def test_an_error_of_mlflow_is_told_in_one_line(folder):
    with pytest.raises(RuntimeError, match="tracker=mlflow: the run was not sent: .* unsupported URI") as error:
        MLflow("nonsense://store").log_run(folder)
    assert "\n" not in str(error.value)


@installed("wandb")
def test_an_error_of_wandb_is_told_in_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "too short")
    with pytest.raises(RuntimeError, match="tracker=wandb: the run was not sent: .*") as error:
        WandB(str(tmp_path / "wandb"), mode="online").log_run(folder)
    assert "\n" not in str(error.value)


def logged_records(data, block=2**15):
    """The records of a file in LevelDB's log format: blocks of pieces behind checksum, length and kind."""
    at, pieces = 7, []  # behind W&B's own header
    while at + 7 <= len(data):
        if block - at % block < 7:  # no room for a piece: the block's rest is filled
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pieces.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield b"".join(pieces)
            pieces = []


@installed("wandb")
def test_wandb_holds_the_run_offline(folder, tmp_path):
    import wandb
    from wandb.proto import wandb_internal_pb2

    where = WandB(str(tmp_path / "wandb")).log_run(folder)
    wandb.teardown()  # as at the end of a process: the file is whole
    (file,) = (tmp_path / "wandb").glob("wandb/offline-run-*/run-*.wandb")
    assert str(file.parent) == where
    records = [wandb_internal_pb2.Record.FromString(data) for data in logged_records(file.read_bytes())]
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert run.run_id == folder.name and run.display_name == "mini_gsm8k tiny_llada entropycache"
    settings = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert settings["method"]["tau"] == 0.25
    logged = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            logged |= {"/".join(item.nested_key): item.value_json for item in record.history.item}
    metrics = Facts.of(folder).metrics
    assert {name: json.loads(logged[name]) for name in metrics} == pytest.approx(metrics)
    assert logged["samples/nrows"] == "10" and logged["cost/_type"] == '"image-file"'
    table = json.loads((file.parent / "files" / json.loads(logged["samples/path"])).read_text())
    assert [row[table["columns"].index("text")] for row in table["data"]] == Facts.of(folder).table["text"].tolist()
