"""The run store: keys (R1), resume after any kill (R2), failures (R3), two processes at once, traces."""

import signal
import time
from pathlib import Path

import pytest

from evaluation import files, store
from evaluation.files import RunBusyError, StoreError, read_lines
from evaluation.runs import load_run, load_runs
from evaluation.store import RunStore, generation_config, run_key, strip_timing
from tests.evaluation.example_runs import CONFIG, FOREVER, MANIFEST, changed, complete, sample, writer

pytestmark = pytest.mark.usefixtures("one_code_version")


# -- R1: keys


@pytest.mark.parametrize(
    "key, value",
    [
        ("method.tau", 0.1),
        ("method.k", 4),
        ("model.revision", "def"),
        ("model.dtype", "float64"),
        ("decoding.block_length", 64),
        ("decoding.temperature", 0.0),  # a key that was not set
        ("benchmark.data", "../shared/data"),
        ("benchmark.num_fewshot", 5),
        ("device", "cuda"),
        ("seed", 1),
        ("limit", 6),
        ("whatever_comes_later", True),
    ],
)
def test_every_setting_of_generation_makes_another_run(tmp_path, key, value):
    other = changed(key, value)
    assert run_key(CONFIG) != run_key(other)
    complete(tmp_path)
    with RunStore(tmp_path).open(other, MANIFEST) as run:
        assert run.missing == [0, 1, 2, 3, 4]


def test_what_does_not_matter_to_generation_makes_no_other_run():
    assert run_key(CONFIG) == run_key(dict(reversed(CONFIG.items())))
    assert run_key(CONFIG) == run_key(CONFIG | {"results": "elsewhere", "profile": "paper"})
    assert run_key(changed("method.tau", 1)) == run_key(changed("method.tau", 1.0))
    assert run_key(changed("method.tau", True)) != run_key(changed("method.tau", 1))
    assert run_key(changed("method.tau", float("inf"))) != run_key(CONFIG)


def test_other_code_makes_another_run():
    assert run_key(CONFIG, code="a") != run_key(CONFIG, code="b")


def test_values_that_are_not_plain_are_refused_by_name():
    with pytest.raises(TypeError, match=r"model\.files\[1\] is a PosixPath"):
        run_key(changed("model.files", ["a"]) | {"model": {"files": ["a", Path("b")]}})


def test_a_finished_run_is_not_run_again(tmp_path):
    first = complete(tmp_path, scores={"n": 5})
    before = {file: file.read_bytes() for file in first.folder.iterdir()}
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as again:
        assert again.done
        assert again.missing == []
        assert [item["seconds"] for item in again.samples] == [0.5] * 5
    assert {file: file.read_bytes() for file in first.folder.iterdir()} == before


def test_a_finished_run_that_was_changed_is_not_taken_for_finished(tmp_path):
    path = complete(tmp_path, scores={"n": 5}).folder / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"samples.jsonl is not as it was when the run was finished; delete the run"):
        RunStore(tmp_path).open(CONFIG, MANIFEST)
    path.unlink()
    with pytest.raises(StoreError, match=r"samples.jsonl is gone, of a finished run"):
        RunStore(tmp_path).open(CONFIG, MANIFEST)


def test_a_run_is_filed_by_name_whatever_the_name(tmp_path):
    """R7: names as people's paths have them stay inside the store."""
    for name in ("/w/step=300,v2/(a)#1%", "../../etc", "..", "a b"):
        folder = RunStore(tmp_path).folder(changed("model.name", name))
        assert folder.resolve().is_relative_to(tmp_path.resolve())
        assert len(folder.relative_to(tmp_path).parts) == 4
    with pytest.raises(ValueError, match="method.name"):
        RunStore(tmp_path).folder(CONFIG | {"method": {"tau": 0.5}})


# -- R2: resume


def test_a_stopped_run_resumes_at_its_first_missing_sample(tmp_path):
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        for index in range(3):
            run.append(sample(index))
    (found,) = load_runs(tmp_path)
    assert (found.status, found.note, len(found.samples)) == ("partial", "3 of 5", 3)
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        assert run.missing == [3, 4]
        with pytest.raises(StoreError, match="3 of 5"):
            run.finish()
    complete(tmp_path)
    (found,) = load_runs(tmp_path)
    assert (found.status, found.note, found.scores) == ("done", "", None)
    assert [session["samples_before"] for session in found.manifest["sessions"]] == [0, 3, 3]


def test_a_run_without_samples_is_empty_not_zero(tmp_path):
    RunStore(tmp_path).open(CONFIG, MANIFEST).close()
    (found,) = load_runs(tmp_path)
    assert (found.status, found.note) == ("empty", "0 of 5")


def test_samples_that_finish_out_of_order_end_up_in_order(tmp_path):
    ordered = complete(tmp_path / "ordered").folder / "samples.jsonl"
    with RunStore(tmp_path / "mixed").open(CONFIG, MANIFEST) as run:
        for index in (2, 0, 4, 1, 3):
            run.append(sample(index))
        assert [item["index"] for item in run.samples] == [0, 1, 2, 3, 4]
        run.finish()
    assert (run.folder / "samples.jsonl").read_bytes() == ordered.read_bytes()


@pytest.mark.parametrize("index", [0, 5, -1])
def test_a_sample_is_written_once_and_in_range(tmp_path, index):
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        run.append(sample(0))
        with pytest.raises(ValueError, match="not missing"):
            run.append(sample(index))
        run.append(sample(1))


def test_a_sample_that_is_not_json_leaves_no_trace(tmp_path):
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        with pytest.raises(ValueError):
            run.append(sample(0, seconds=float("nan")))
        run.append(sample(0))
        assert run.missing == [1, 2, 3, 4]
    assert len(read_lines(run.folder / "samples.jsonl")[0]) == 1


def test_a_run_killed_again_and_again_ends_as_if_it_never_was(tmp_path):
    count, kills = 400, 0
    for attempt in range(30):
        process = writer(tmp_path / "killed", count)
        if attempt < 6:
            time.sleep(0.004 * attempt)
            process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        (found,) = load_runs(tmp_path / "killed")
        assert found.status in ("empty", "partial", "done"), found.note
        assert [item["index"] for item in found.samples] == list(range(len(found.samples)))
        if found.status == "done":
            break
    assert kills >= 1
    assert writer(tmp_path / "whole", count).wait() == 0
    (whole,) = load_runs(tmp_path / "whole")
    assert found.folder.joinpath("samples.jsonl").read_bytes() == whole.folder.joinpath("samples.jsonl").read_bytes()
    assert {file.name for file in found.folder.iterdir()} == {file.name for file in whole.folder.iterdir()}


def test_what_a_kill_left_of_a_final_file_is_swept_up(tmp_path):
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        (run.folder / ".DONE.4711.tmp").write_text("{")
    assert load_run(run.folder).status == "empty"
    RunStore(tmp_path).open(CONFIG, MANIFEST).close()
    assert not list(run.folder.glob(".*.tmp"))


def test_a_second_process_on_one_run_stops_with_a_clear_line(tmp_path):
    process = writer(tmp_path, FOREVER)
    try:
        with pytest.raises(RunBusyError) as refusal:
            RunStore(tmp_path).open(CONFIG, MANIFEST | {"samples": FOREVER})
        assert str(process.pid) in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert load_runs(tmp_path)[0].status in ("partial", "empty")  # reading needs no lock
        RunStore(tmp_path).fail(CONFIG, OSError("no weights"))
        assert not list(tmp_path.rglob("FAILED"))
        with RunStore(tmp_path).open(changed("seed", 1), MANIFEST):
            pass  # another run is free
    finally:
        process.kill()
        process.wait()
    with RunStore(tmp_path).open(CONFIG, MANIFEST | {"samples": FOREVER}) as run:  # the lock died with its owner
        assert run.total == FOREVER


@pytest.mark.parametrize("key", ["device", "dtype", "data_sha256", "prompts_sha256", "samples"])
@pytest.mark.parametrize("finished", [True, False])
def test_samples_of_two_kinds_do_not_meet_in_one_run(tmp_path, key, finished):
    if finished:
        complete(tmp_path)
    else:
        RunStore(tmp_path).open(CONFIG, MANIFEST).close()
    with pytest.raises(StoreError, match=f"{key}=.*delete the run"):
        RunStore(tmp_path).open(CONFIG, MANIFEST | {key: 7})
    RunStore(tmp_path).open(CONFIG, MANIFEST).close()  # and the refusal holds no lock


# -- R3: failures


def test_a_failed_run_alone_is_done_again(tmp_path):
    configs = [changed("method.tau", tau) for tau in (0.1, 0.5, 2.0)]

    def sweep(broken):
        worked_on = []
        for config in configs:
            try:
                with RunStore(tmp_path).open(config, MANIFEST) as run:
                    for index in run.missing:
                        worked_on.append((config["method"]["tau"], index))
                        if broken and config["method"]["tau"] == 0.5 and index == 2:
                            raise RuntimeError("out of\nmemory")
                        run.append(sample(index))
                    run.finish()
            except RuntimeError:
                assert broken
        return worked_on

    sweep(broken=True)
    assert {run.config["method"]["tau"]: (run.status, run.note) for run in load_runs(tmp_path)} == {
        0.1: ("done", ""),
        0.5: ("failed", "RuntimeError: out of memory (after 2 of 5 samples)"),
        2.0: ("done", ""),
    }
    assert sweep(broken=False) == [(0.5, 2), (0.5, 3), (0.5, 4)]
    assert [run.status for run in load_runs(tmp_path)] == ["done"] * 3


def test_a_run_that_fails_before_it_begins_is_on_record(tmp_path):
    RunStore(tmp_path).fail(CONFIG, FileNotFoundError("no such checkpoint"))
    (found,) = load_runs(tmp_path, {"method.name": "entropycache"})
    assert (found.status, found.note) == ("failed", "FileNotFoundError: no such checkpoint")
    complete(tmp_path)
    RunStore(tmp_path).fail(CONFIG, FileNotFoundError("no such checkpoint"))
    assert load_runs(tmp_path)[0].status == "done"


def test_a_stop_from_the_keyboard_is_no_failure(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        run.append(sample(0))
        raise KeyboardInterrupt
    assert load_runs(tmp_path)[0].status == "partial"


# -- traces and timing


def test_step_records_become_one_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        for index in (1, 0):
            run.append(sample(index), steps=[{"refresh": True, "computed": [0, 1]}, {"refresh": False, "computed": []}])
    # killed between a sample's steps and the sample: both are written again
    with (run.folder / "steps.jsonl").open("ab") as steps:
        steps.write(files.as_line({"index": 2, "steps": [{"refresh": True, "computed": [9]}]}) + b'{"index"')
    with RunStore(tmp_path).open(CONFIG, MANIFEST) as run:
        for index in run.missing:
            run.append(sample(index), steps=[{"refresh": True, "computed": [index]}])
        run.finish()
    table = parquet.read_table(run.folder / "steps.parquet").to_pylist()
    assert [(row["index"], row["step"]) for row in table] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (4, 0)]
    assert table[4]["computed"] == [2]
    assert not (run.folder / "steps.jsonl").exists()


def test_two_runs_of_one_configuration_agree_but_for_their_timing():
    first = sample(0) | {"decision_seconds": 0.1, "decision_parts": {"plan": 0.1}, "peak_memory_bytes": 5}
    second = sample(0, seconds=9.0) | {"decision_seconds": 0.2, "decision_parts": {}, "peak_memory_bytes": None}
    assert strip_timing(first) == strip_timing(second)
    assert strip_timing(first) != strip_timing(first | {"text": "other"})
    assert not set(strip_timing(first)) & set(store.TIMING_FIELDS)


def test_generation_config_leaves_out_where_a_run_is_written():
    assert set(CONFIG) - set(generation_config(CONFIG)) == {"results"}
