"""GPUs handed out one a job, and none taken for a measurement that another process computes on."""

import os

import pytest

from evaluation import devices

GPUS = [["0", "GPU-a"], ["1", "GPU-b"], ["2", "GPU-c"]]


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """A machine with three GPUs, on whose second a process of another job computes."""
    apps = [["GPU-b", "4711", "900"], ["GPU-c", str(os.getpid()), "100"]]
    answers = {"--query-gpu=index,uuid": GPUS, "--query-compute-apps=gpu_uuid,pid,used_memory": apps}
    monkeypatch.setattr(devices, "nvidia_smi", answers.__getitem__)
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def as_another_process(monkeypatch):
    """The locks stay with the descriptors that were opened, as with a process that goes on."""
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


def test_each_job_has_a_gpu_of_its_own_and_keeps_it(gpus, monkeypatch):
    for expected in ("GPU-a", "GPU-b", "GPU-c"):
        assert devices.take_gpu() == expected == os.environ["CUDA_VISIBLE_DEVICES"]
        assert devices.take_gpu() == expected
        as_another_process(monkeypatch)
    with pytest.raises(RuntimeError, match="all 3 GPUs are taken by other jobs"):
        devices.take_gpu()


@pytest.mark.parametrize(("allowed", "seen"), [("2,0", ["GPU-c", "GPU-a"]), ("GPU-b", ["GPU-b"]), ("", []), (None, 3)])
def test_only_visible_gpus_are_taken(gpus, monkeypatch, allowed, seen):
    if allowed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert devices.visible_gpus() == (seen if seen != 3 else [uuid for _, uuid in GPUS])


def test_a_job_of_submitits_local_executor_takes_one_that_is_free(gpus, monkeypatch):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    for allowed, expected in (("", "GPU-a"), ("", "GPU-b"), ("2", "GPU-c")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
        assert devices.take_gpu() == expected == os.environ["CUDA_VISIBLE_DEVICES"]
        as_another_process(monkeypatch)


def test_a_machine_without_gpus_has_none_to_take(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_smi", lambda *query: [])
    assert devices.take_gpu() is None
    devices.check_idle("cuda")


def test_a_busy_gpu_is_refused(gpus):
    with pytest.raises(RuntimeError, match=r"cuda:1 is busy with process 4711 \(900 MiB\).*allow_busy_device=true"):
        devices.check_idle("cuda:1")
    for quiet in ("cuda", "cuda:0", "cuda:2", "cpu"):
        devices.check_idle(quiet)
