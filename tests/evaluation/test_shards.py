"""Shards of a run: the same samples however many there are, and what is missing is named."""

import json

import pytest

from evaluation import shards
from evaluation.files import StoreError, write_text
from evaluation.runs import load_run
from evaluation.store import RunStore

CONFIG = {"benchmark": {"name": "b"}, "model": {"name": "m"}, "method": {"name": "x"}, "seed": 0}
MANIFEST = {"samples": 12, "device": "cpu", "prompts_sha256": "p"}

pytestmark = pytest.mark.usefixtures("one_code_version")


def sample(index):
    return {"id": f"b/{index}", "index": index, "text": f"answer {index}"}


def make(results, number, of, manifest=MANIFEST, most=None, trace=False):
    with shards.Shard(results, CONFIG, manifest, number, of) as shard:
        for index in list(shard.missing)[:most]:
            steps = [{"refresh": step == 0, "computed": [step, index]} for step in range(2)]
            shard.append(sample(index), steps if trace else None)
        if not shard.missing:
            shard.finish()
        return shard.folder


@pytest.mark.parametrize("of", [1, 2, 5])
@pytest.mark.parametrize("trace", [False, True])
def test_the_merged_run_is_the_run_of_one_worker(tmp_path, of, trace):
    for number in reversed(range(of)):
        make(tmp_path, number, of, trace=trace)
    folder = shards.merge(tmp_path, CONFIG, MANIFEST, of)
    assert folder == RunStore(tmp_path / "runs").folder(CONFIG)
    with RunStore(tmp_path / "alone").open(CONFIG, MANIFEST) as alone:
        for index in alone.missing:
            steps = [{"refresh": step == 0, "computed": [step, index]} for step in range(2)]
            alone.append(sample(index), steps if trace else None)
        alone.finish()
    for file in ["samples.jsonl", "DONE", *(["steps.parquet"] if trace else [])]:
        assert (folder / file).read_bytes() == (alone.folder / file).read_bytes()
    assert load_run(folder).status == "done"
    assert json.loads((folder / "manifest.json").read_text())["shards"] == of


def test_each_sample_is_in_exactly_one_shard(tmp_path):
    made = [
        json.loads(line)["index"]
        for number in range(5)
        for line in (make(tmp_path, number, 5) / "samples.jsonl").open()
    ]
    assert made == [index for number in range(5) for index in range(number, 12, 5)]


def test_more_shards_than_samples_leave_some_empty(tmp_path):
    for number in range(14):
        make(tmp_path, number, 14)
    assert load_run(shards.merge(tmp_path, CONFIG, MANIFEST, 14)).status == "done"


def test_missing_shards_are_named(tmp_path):
    for number in (0, 2):
        make(tmp_path, number, 5)
    make(tmp_path, 3, 5, most=1)
    damaged = make(tmp_path, 4, 5)
    write_text(damaged / "samples.jsonl", json.dumps(sample(4)) + "\n")
    with pytest.raises(
        StoreError, match="of 5 shards these are missing: 1, 3, 4; run again with shards=5 and shard=1, 3, 4"
    ):
        shards.merge(tmp_path, CONFIG, MANIFEST, 5)
    assert not RunStore(tmp_path / "runs").folder(CONFIG).exists()


def test_a_stopped_shard_goes_on_with_its_own_samples(tmp_path):
    make(tmp_path, 1, 2, most=2)
    with shards.Shard(tmp_path, CONFIG, MANIFEST, 1, 2) as shard:
        assert shard.missing == [5, 7, 9, 11]
        with pytest.raises(ValueError, match="not missing"):
            shard.append(sample(3))


def test_a_stopped_merge_goes_on_and_is_done_once(tmp_path):
    for number in range(2):
        make(tmp_path, number, 2)
    with RunStore(tmp_path / "runs").open(CONFIG, MANIFEST) as run:
        run.append(sample(3))
    folder = shards.merge(tmp_path, CONFIG, MANIFEST, 2)
    before = (folder / "DONE").stat().st_mtime_ns
    assert shards.merge(tmp_path, CONFIG, MANIFEST, 2) == folder and (folder / "DONE").stat().st_mtime_ns == before
    assert [s["index"] for s in load_run(folder).samples] == list(range(12))


def test_shards_of_other_data_are_not_mixed(tmp_path):
    make(tmp_path, 0, 2)
    make(tmp_path, 1, 2, manifest={**MANIFEST, "prompts_sha256": "other"})
    with pytest.raises(StoreError, match="prompts_sha256=other, now it is p"):
        shards.merge(tmp_path, CONFIG, MANIFEST, 2)


@pytest.mark.parametrize(
    ("number", "of", "says"), [(5, 5, "0 to 4 would do"), (-1, 2, "0 to 1"), (0, 0, "must be 1 or more")]
)
def test_there_is_no_such_shard(tmp_path, number, of, says):
    with pytest.raises(ValueError, match=says):
        make(tmp_path, number, of)
