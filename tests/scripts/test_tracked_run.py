"""`tracker=` on the command line: a finished run is sent to the tracker that is chosen, once."""

import re

import pytest

from tests.test_trackers import installed

RUN = ["run.py", "method=entropycache", "decoding.threshold=0.3"]


@pytest.mark.parametrize("tracker", [pytest.param(name, marks=installed(name)) for name in ("mlflow", "wandb")])
def test_a_run_is_sent_once_to_the_tracker_that_is_chosen(script, small, tmp_path, tracker):
    code, plain, err = script(*RUN, *small)
    assert code == 0, err
    assert not list(tmp_path.glob("mlflow*")) and not list(tmp_path.glob("wandb*"))
    told = [script(*RUN, *small, f"tracker={tracker}") for _ in range(2)]
    assert [code for code, _, _ in told] == [0, 0], told[0][2]
    where = [re.search(rf"^{tracker}: (\S+)$", out, re.MULTILINE).group(1) for _, out, _ in told]
    assert all(out.startswith(plain) for _, out, _ in told)
    if tracker == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
        (experiment,) = client.search_experiments(filter_string="name = 'entropycache'")
        (run,) = client.search_runs([experiment.experiment_id])
        assert where == [run.info.run_id] * 2 and run.data.params["method.tau"] == "0.5"
        assert {"scores.json", "cost.png"} <= {path.name for path in tmp_path.glob("mlflow/*/artifacts/*")}
    else:
        keys = {path.parent.name for path in tmp_path.glob("runs/*/*/*/*/DONE")}
        assert where[0] == where[1] and {re.sub(r".*-", "", where[0])} == keys
        assert len(list(tmp_path.glob("wandb/wandb/offline-run-*"))) == 1
