"""Torn lines, full disks, folders that cannot be written: nothing that was written is lost."""

import json
import os
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluation import files
from evaluation.files import Lines, StoreError, read_lines
from evaluation.runs import load_runs
from evaluation.store import RunStore
from tests.evaluation.example_runs import CONFIG, MANIFEST, complete, sample, writer

pytestmark = pytest.mark.usefixtures("one_code_version")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_a_file_torn_at_any_byte_loses_its_last_line_alone(tmp_path, data):
    """And never a line that is whole, with or without its newline."""
    whole = [files.as_line(sample(index)) for index in range(3)]
    content = b"".join(whole)
    cut = data.draw(st.integers(0, len(content)))
    path = tmp_path / "samples.jsonl"
    path.write_bytes(content[:cut])
    good = sum(cut >= sum(map(len, whole[: n + 1])) - 1 for n in range(3))
    assert [record["index"] for record in read_lines(path)[0]] == list(range(good))
    lines = Lines(path)
    for index in range(good, 3):
        lines.append(sample(index))
    lines.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize("tail", [b"\0" * 512, b"{", b"\xc3", b'{"index": 3}{"index": 4}', b"{\n", b"null\n", b"\n"])
def test_a_tail_that_is_no_record_is_dropped(tmp_path, tail):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(files.as_line(sample(0)) + tail)
    lines = Lines(path)
    lines.append(sample(1))
    lines.close()
    assert path.read_bytes() == files.as_line(sample(0)) + files.as_line(sample(1))


def test_final_files_appear_whole_or_not_at_all(tmp_path):
    path = tmp_path / "scores.json"
    files.write_json(path, {"n": 1})
    with pytest.raises(RuntimeError), files.atomic(path) as temporary:
        temporary.write_text("{half")
        raise RuntimeError
    with pytest.raises(ValueError):
        files.write_json(path, {"n": float("nan")})
    assert json.loads(path.read_text()) == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_can_grow_no_more_loses_nothing(tmp_path):
    """The write of the last line is cut short by the system, as on a full disk."""
    index, message = writer(tmp_path, 100, limit=20_000).communicate()[0].split(" ", 1)
    assert message.startswith(f"cannot write {tmp_path}")
    assert message.count("\n") == 1
    assert int(index) == 6
    (found,) = load_runs(tmp_path)
    assert (found.status, len(found.samples)) == ("partial", 6)
    assert (found.folder / "samples.jsonl").read_bytes().endswith(b"}\n")
    complete(tmp_path, count=100)
    assert load_runs(tmp_path)[0].status == "done"


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_loses_nothing(small_disk):
    with (
        pytest.raises(StoreError, match="No space left") as full,
        RunStore(small_disk).open(CONFIG, MANIFEST | {"samples": 1000}) as run,
    ):
        for index in run.missing:
            run.append(sample(index) | {"padding": "x" * 3000})
    assert str(run.folder) in str(full.value)
    (found,) = load_runs(small_disk)
    assert found.status in ("partial", "failed")
    assert [item["index"] for item in found.samples] == list(range(len(found.samples)))
    assert len(found.samples) > 50
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    complete(small_disk, count=1000)
    assert load_runs(small_disk)[0].samples[: len(found.samples)] == found.samples


@pytest.mark.parametrize("where", ["a file", "a file in the way of a run", "no rights"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, where):
    root = tmp_path / "root"
    if where == "a file":
        root.write_text("")
    elif where == "a file in the way of a run":
        root.mkdir()
        (root / "mini_gsm8k").write_text("")
    else:
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere")
        root.mkdir(mode=0o555)
    with pytest.raises(StoreError, match=f"cannot write {root}") as refusal:
        RunStore(root).open(CONFIG, MANIFEST)
    assert "\n" not in str(refusal.value)
    assert "results=" in str(refusal.value)


def test_a_run_whose_failure_cannot_be_written_either_shows_the_first_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    with pytest.raises(RuntimeError, match="the first error"), RunStore(tmp_path).open(CONFIG, MANIFEST):
        monkeypatch.setattr(os, "replace", refuse)
        raise RuntimeError("the first error")
