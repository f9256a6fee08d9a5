"""Sweeps on Hydra's launchers, where these are installed (extras): the runs of the serial sweep, whoever does the jobs,
and whatever becomes of one of them.
"""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from evaluation.store import strip_timing
from tests.conftest import ROOT
from tests.scripts.conftest import SMALL

SWEEP = ["method=entropycache", "decoding.threshold=0.3", "method.tau=0.05,0.5,2.0", "method.k=2,8", "limit=4"]


def installed(package):
    there = any(distribution.name == package for distribution in importlib.metadata.distributions())
    return pytest.mark.skipif(not there, reason=f"{package} is not installed: an extra")


JOBLIB = pytest.param(["launcher=joblib"], id="joblib", marks=installed("hydra-joblib-launcher"))
SUBMITIT = pytest.param(["launcher=submitit_local"], id="submitit_local", marks=installed("hydra-submitit-launcher"))
RAY = pytest.param(
    ["launcher=ray", "+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false"],
    id="ray",
    marks=installed("hydra-ray-launcher"),
)


def started(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "run.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(root):
    """{(tau, k): (samples without times, scores)} of the finished runs."""
    found = {}
    for done in root.glob("runs/*/*/*/*/DONE"):
        config = yaml.safe_load((done.parent / "config.yaml").read_text())
        samples = [json.loads(line) for line in (done.parent / "samples.jsonl").read_text().splitlines()]
        key = config["method"]["tau"], config["method"]["k"]
        found[key] = [strip_timing(sample) for sample in samples], (done.parent / "scores.json").read_bytes()
    return found


@pytest.fixture(scope="session")
def serial(checkpoints, tmp_path_factory):
    """The runs of the sweep, one after the other in one process."""
    root = tmp_path_factory.mktemp("serial")
    small = ["model=tiny_llada", f"model.path={checkpoints['llada']}", *SMALL]
    process = started("-m", *small, *SWEEP, f"results={root}")
    assert process.wait() == 0, process.stdout.read()
    return results(root)


def killed_writer(root, process):
    """Kill the process that writes the first run with a sample in it."""
    while process.poll() is None:
        for samples in root.glob("runs/*/*/*/*/samples.jsonl"):
            if samples.stat().st_size and not (samples.parent / "DONE").exists():
                os.kill(int((samples.parent / ".lock").read_text()), signal.SIGKILL)
                return True
        time.sleep(0.005)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT, RAY])
def test_a_sweep_of_six_jobs_is_the_serial_sweep_though_one_is_killed(launcher, serial, small, tmp_path):
    sweep = [*launcher, *small, *SWEEP]
    process = started(*sweep)
    assert killed_writer(tmp_path, process), process.stdout.read()
    process.communicate()
    process = started(*sweep)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert len(serial) == 6 and results(tmp_path) == serial
    assert "failed" not in max(tmp_path.glob("sweeps/*/sweep.md")).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT, RAY])
def test_shards_are_started_by_one_command(launcher, serial, small, tmp_path):
    fixed = ["method=entropycache", "decoding.threshold=0.3", "method.tau=0.5", "method.k=2", "limit=4"]
    process = started(*launcher, *small, *fixed, "shards=3")
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert results(tmp_path) == {(0.5, 2): serial[0.5, 2]}


@installed("hydra-submitit-launcher")
def test_the_slurm_preset_asks_for_what_it_says(script, small, monkeypatch, tmp_path):
    import submitit
    from hydra.core.utils import JobReturn, JobStatus

    class Ended:
        def results(self):
            return [JobReturn(_return_value=tmp_path, status=JobStatus.COMPLETED)]

    written = []

    def submitted(executor, call, *columns):
        executor._executor.parameters["map_count"] = len(columns[0])
        written.append(executor._executor._make_submission_file_text("the command", "name"))
        return [Ended() for _ in columns[0]]

    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: 1))
    monkeypatch.setattr(submitit.AutoExecutor, "map_array", submitted)
    code, _, err = script("run.py", "launcher=submitit_slurm", "hydra.launcher.partition=gpu", *small, *SWEEP)
    assert code == 0, err
    (text,) = written
    asked = {line.split(None, 1)[1] for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {
        "--partition=gpu",
        "--gpus-per-node=1",
        "--cpus-per-task=8",
        "--mem=64GB",
        "--time=720",
        "--nodes=1",
    } <= asked
    assert "--array=0-5%6" in asked and "--signal=USR2@120" in asked
    assert "srun" in text and "the command" in text
