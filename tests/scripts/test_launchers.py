"""Sweeps on Hydra's launchers, where these are installed (extras): the runs of the serial sweep, whoever does the jobs,
and whatever becomes of one of them.
"""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from evaluation.store import strip_timing
from tests.conftest import ROOT

MODEL = ["model=tiny_llada", "benchmark=mini_gsm8k", "benchmark.num_fewshot=1", "benchmark.gen_length=32"]
SWEEP = [*MODEL, "method=entropycache", "method.tau=0.05,0.5,2.0", "method.k=2,8", "limit=8"]
SHARDED = [*MODEL, "method=entropycache", "method.tau=0.5", "method.k=2", "limit=8", "shards=3"]


def installed(package):
    there = any(distribution.name == package for distribution in importlib.metadata.distributions())
    return pytest.mark.skipif(not there, reason=f"{package} is not installed: an extra")


JOBLIB = pytest.param(["launcher=joblib"], id="joblib", marks=installed("hydra-joblib-launcher"))
SUBMITIT = pytest.param(["launcher=submitit_local"], id="submitit_local", marks=installed("hydra-submitit-launcher"))
RAY = pytest.param(
    ["launcher=ray", "+hydra.launcher.ray.init.num_cpus=2"], id="ray", marks=installed("hydra-ray-launcher")
)


def started(*arguments, folder=None):
    command = [sys.executable, str(ROOT / "scripts" / "run.py"), *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(*arguments, folder=None):
    process = started(*arguments, folder=folder)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def results(root):
    """{(tau, k): (samples without times, scores)} of the finished runs."""
    found = {}
    for done in root.glob("runs/*/*/*/*/DONE"):
        config = yaml.safe_load((done.parent / "config.yaml").read_text())
        samples = [json.loads(line) for line in (done.parent / "samples.jsonl").read_text().splitlines()]
        key = config["method"]["tau"], config["method"]["k"]
        found[key] = [strip_timing(sample) for sample in samples], json.loads((done.parent / "scores.json").read_text())
    return found


@pytest.fixture(scope="session")
def serial(tmp_path_factory):
    """The runs of the sweep, one after the other in one process; their answers differ, and some are right."""
    root = tmp_path_factory.mktemp("serial")
    finished("-m", *SWEEP, f"results={root}")
    found = results(root)
    assert len(found) == 6 and len({sum(s["rows_computed"] for s in samples) for samples, _ in found.values()}) > 3
    assert any(scores["accuracy"]["strict"]["mean"] > 0 for _, scores in found.values())
    return found


def stopped_writer(root, process, number):
    """Send a signal to the process that writes the first run with a sample in it; returns the run's folder."""
    while process.poll() is None:
        for samples in root.glob("runs/*/*/*/*/samples.jsonl"):
            if samples.stat().st_size and not (samples.parent / "DONE").exists():
                os.kill(int((samples.parent / ".lock").read_text()), number)
                return samples.parent
        time.sleep(0.005)
    pytest.fail(f"no run was under way: {process.stdout.read()}")


def sessions(folder):
    """How many samples there were each time that a run was begun or taken up."""
    return [entry["samples_before"] for entry in json.loads((folder / "manifest.json").read_text())["sessions"]]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT, RAY])
def test_a_sweep_of_six_jobs_is_the_serial_sweep_though_one_is_killed(launcher, serial, tmp_path):
    sweep = [*launcher, *SWEEP, f"results={tmp_path}"]
    process = started(*sweep)
    killed = stopped_writer(tmp_path, process, signal.SIGKILL)
    process.communicate()
    finished(*sweep)
    assert results(tmp_path) == serial
    first, second = sessions(killed)
    assert first == 0 < second < 8
    assert "failed" not in max(tmp_path.glob("sweeps/*/sweep.md")).read_text()


@pytest.mark.slow
@installed("hydra-submitit-launcher")
def test_a_preempted_job_is_put_back_in_the_queue_and_goes_on(serial, tmp_path):
    process = started("launcher=submitit_local", *SWEEP, f"results={tmp_path}")
    preempted = stopped_writer(tmp_path, process, signal.SIGUSR2)  # SLURM's warning, as submitit asks for it
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert results(tmp_path) == serial
    first, second = sessions(preempted)
    assert first == 0 < second < 8


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT, RAY])
def test_shards_are_started_by_one_command(launcher, serial, tmp_path):
    finished(*launcher, *SHARDED, f"results={tmp_path}")
    assert results(tmp_path) == {(0.5, 2): serial[0.5, 2]}


@pytest.mark.slow
@installed("hydra-ray-launcher")
def test_a_ray_cluster_that_is_running_is_joined(serial, tmp_path):
    """Its processes work where it was started; the results are those of the folder that the sweep is started in."""
    import ray

    cluster = ray.init(num_cpus=2, include_dashboard=False)
    try:
        joined = f"hydra.launcher.ray.init.address='{cluster.address_info['gcs_address']}'"
        finished("launcher=ray", joined, *SHARDED, folder=tmp_path)
    finally:
        ray.shutdown()
    assert list(tmp_path.glob("results/sweeps/*/sweep.md"))
    assert results(tmp_path / "results") == {(0.5, 2): serial[0.5, 2]}


CLUSTER = {  # what the preset needs of SLURM, done by this machine: every task of an array of six at once
    "sbatch": """
        cp "$1" batch.sh
        for i in 0 1 2 3 4 5; do
            export SLURM_JOB_ID=$((100 + i)) SLURM_ARRAY_JOB_ID=100 SLURM_ARRAY_TASK_ID=$i
            (bash batch.sh; touch ended_$i) > /dev/null 2>&1 &
        done
        echo Submitted batch job 100""",
    "srun": """
        while [[ $1 != */python* ]]; do shift; done
        exec "$@\"""",
    "sacct": """
        until [ "$(echo ended_*)" = "$(echo ended_{0..5})" ]; do sleep 0.2; done
        echo 'JobID|State|NodeList'
        for i in 0 1 2 3 4 5; do echo "100_$i|COMPLETED|here"; done""",
}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with stand-ins for SLURM's commands, on the PATH; the batch script stays in it."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, body in CLUSTER.items():
        (folder / name).write_text(f"#!/bin/bash\ncd {folder}{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.slow
@installed("hydra-submitit-launcher")
def test_the_slurm_preset_asks_for_what_the_guide_shows(slurm, serial, tmp_path):
    finished("launcher=submitit_slurm", "hydra.launcher.partition=gpu", *SWEEP, f"results={tmp_path}")
    assert results(tmp_path) == serial
    (sweep,) = tmp_path.glob("sweeps/*")
    lines = (slurm / "batch.sh").read_text().replace(str(sweep), "<sweep>").splitlines()
    asked = [line for line in lines if line.startswith("#SBATCH")]
    shown = re.findall(r"^    (#SBATCH .*)$", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE)
    assert asked and asked == shown
    assert lines[-1].startswith("srun ") and lines[-1].endswith("-m submitit.core._submit <sweep>/submitit/%j")


def test_a_speed_measurement_refuses_a_gpu_that_is_busy_and_is_never_sharded(script, monkeypatch, tmp_path):
    gpu = {"--query-gpu=index,uuid": [["0", "GPU-a"]], "--query-compute-apps=gpu_uuid,pid,used_memory": []}
    monkeypatch.setattr("evaluation.devices.nvidia_smi", lambda *query: gpu.get(query[0], []))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    speed = ["speed.py", *MODEL, "prompts=1", "device=cuda", f"results={tmp_path}"]

    def refused(*more):
        code, _, err = script(*speed, *more)
        assert code == 1 and err.count("\n") == 1
        return err

    no_cuda = refused()  # the GPU is idle, but only a pretence
    assert "no CUDA device is available here" in no_cuda
    gpu["--query-compute-apps=gpu_uuid,pid,used_memory"] = [["GPU-a", "4711", "900"]]
    assert "device=cuda is busy with process 4711 (900 MiB)" in refused()
    assert refused("allow_busy_device=true") == no_cuda
    assert "'shards' is not in struct" in refused("shards=2")
