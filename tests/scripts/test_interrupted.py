"""Runs and sweeps that are killed, run out of disk or may not write: nothing written is lost, and they end as if it had
not happened (case R2).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet
import pytest
import yaml

from evaluation.files import read_lines
from evaluation.runs import load_runs
from evaluation.store import strip_timing
from tests.conftest import ROOT

RUN = ["method=entropycache", "decoding.threshold=0.3", "limit=30", "batch_size=3", "trace=2"]
SWEEP = ["-m", *RUN[:2], "limit=8", "batch_size=3", "method.tau=0.1,0.9", "method.k=0,4"]

SERVER = """
import json, os, runpy, sys, traceback

scripts, log = sys.argv[1:]
sys.path.insert(0, scripts)
import entry, evaluation.benchmarks, evaluation.generate, evaluation.speed, torch
from entropycache import load_model

torch.set_num_threads(1)
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1), os.dup2(out, 2)
            sys.argv = json.loads(line)
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as exit:
            code = exit.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Server:
    """A process that has imported everything and forks a child for each command: a start takes a moment."""

    def __init__(self, log):
        self.log = log
        command = [sys.executable, "-c", SERVER, str(ROOT / "scripts"), str(log)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout.readline() == "ready\n"

    def start(self, *arguments):
        """Starts scripts/run.py; returns its process id."""
        self.log.write_text("")
        options = sorted(arguments, key=lambda argument: not argument.startswith("-"))
        self.process.stdin.write(json.dumps([str(ROOT / "scripts" / "run.py"), *options]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self):
        """The exit code of what was started."""
        return int(self.process.stdout.readline())

    def run(self, *arguments):
        """Exit code and output of a command that is let be."""
        self.start(*arguments)
        return self.wait(), self.log.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server") / "log")
    yield server
    server.process.stdin.close()
    server.process.wait()


def written(root):
    """{run: samples that are there, by index} below a folder."""
    return {
        path.parent: {sample["index"]: strip_timing(sample) for sample in read_lines(path)[0]}
        for path in root.glob("runs/*/*/*/*/samples.jsonl")
    }


def outcome(root):
    """{(tau, k): (samples to the byte but for times, scores to the byte, steps)} of finished runs.

    A step is its rows and tokens: how sequences were packed shows in the last bit of a confidence.
    """
    found = {}
    for run in load_runs(root / "runs"):
        assert run.status == "done", run.note
        samples, _ = read_lines(run.folder / "samples.jsonl")  # as they lie there
        steps = run.folder / "steps.parquet"
        rows = pyarrow.parquet.read_table(steps).to_pylist() if steps.exists() else []
        settings = yaml.safe_load((run.folder / "config.yaml").read_text())["method"]
        found[settings["tau"], settings["k"]] = (
            [json.dumps(strip_timing(sample)) for sample in samples],
            (run.folder / "scores.json").read_bytes(),
            [
                {key: row[key] for key in ("index", "step", "refresh", "computed", "committed", "tokens")}
                for row in rows
            ],
        )
    return found


def killed_again_and_again(server, command, root, kills, seed):
    """Kill a command at random moments: some before its first sample, some in the midst of a write, so many in all."""
    chance = random.Random(seed)
    done = {}
    for _ in range(kills):
        before = sum(map(len, done.values()))
        pid = server.start(*command, f"results={root}")
        more, deadline = chance.choice((0, 0, 1, 2)), time.monotonic() + 60
        while more and sum(map(len, written(root).values())) < before + more and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.4 if not more else 0.02))
        os.kill(pid, signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL, "it ended before it was killed: make the run longer"
        there = written(root)
        for run, samples in done.items():
            assert samples.items() <= there[run].items(), "a sample that was written is gone"
        done = there
    return sum(map(len, done.values()))


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("command", "runs", "samples"), [(RUN, 1, 30), (SWEEP, 4, 8)], ids=["a run", "a sweep"])
def test_what_is_killed_at_random_moments_ends_as_if_it_never_was(
    server, small, tmp_path, command, runs, samples, kills
):
    command = [*small[:-2], *command]
    there = killed_again_and_again(server, command, tmp_path / "killed", kills, seed=kills)
    assert there < runs * samples
    for root in (tmp_path / "killed", tmp_path / "whole"):
        code, said = server.run(*command, f"results={root}")
        assert code == 0, said
    killed, whole = outcome(tmp_path / "killed"), outcome(tmp_path / "whole")
    assert len(whole) == runs and {len(lines) for lines, *_ in whole.values()} == {samples}
    assert killed == whole
    assert len({scores for _, scores, _ in whole.values()} | set(whole)) > 1


def test_a_second_process_on_one_run_stops_with_one_line_that_names_the_first(server, script, small, tmp_path):
    command = [*small[:-2], *RUN, f"results={tmp_path}"]
    pid = server.start(*command)
    while not any(written(tmp_path).values()):
        time.sleep(0.001)
    os.kill(pid, signal.SIGSTOP)
    code, out, err = script("run.py", *command)
    os.kill(pid, signal.SIGCONT)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: ") and f"process {pid} is writing this run; wait for it, or stop it first" in err
    assert server.wait() == 0, server.log.read_text()
    assert script("run.py", *command)[0] == 0


@pytest.fixture
def disk(tmp_path):
    """`disk(options)` mounts a small file system, or changes it where it is mounted; returns its folder."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        again = ["remount"] if os.path.ismount(folder) else []
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*again, *options]), "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs the right to mount a small tmpfs")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", folder], check=True)


def test_a_run_on_a_full_disk_loses_nothing(server, small, disk, tmp_path):
    command = [*small[:-2], *RUN]
    code, said = server.run(*command, f"results={disk(['size=40k'])}")
    assert code == 1 and said.splitlines()[-1].startswith("error: cannot write ") and "No space left" in said
    (there,) = written(tmp_path / "disk").values()
    assert 0 < len(there) < 30
    assert server.run(*command, f"results={disk(['size=16m'])}")[0] == 0
    assert server.run(*command, f"results={tmp_path / 'whole'}")[0] == 0
    (run,) = load_runs(tmp_path / "disk" / "runs")
    assert {index: strip_timing(run.samples[index]) for index in there} == there
    assert outcome(tmp_path / "disk") == outcome(tmp_path / "whole")


def test_a_run_in_a_folder_that_becomes_read_only_loses_nothing(server, small, disk, tmp_path):
    command = [*small[:-2], *RUN, f"results={disk(['size=16m'])}"]
    pid = server.start(*command)
    while not any(written(tmp_path / "disk").values()):
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    server.wait()
    there = written(tmp_path / "disk")
    disk(["ro"])
    code, said = server.run(*command)
    assert code == 1 and said.splitlines()[-1].startswith("error: cannot write ") and "Read-only" in said
    assert written(tmp_path / "disk") == there
    disk(["rw"])
    assert server.run(*command)[0] == 0
    assert list(outcome(tmp_path / "disk"))
