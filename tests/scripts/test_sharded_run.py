"""A run split among workers, from the command line: the samples of one worker, and a word on what is missing."""

import json
from pathlib import Path

from evaluation.store import strip_timing

ENTROPYCACHE = ["method=entropycache", "decoding.threshold=0.3", "limit=7", "batch_size=2"]


def finished(results):
    (folder,) = Path(results).glob("runs/*/*/*/*/")
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [strip_timing(sample) for sample in samples], (folder / "scores.json").read_bytes()


def test_the_samples_are_those_of_one_worker_however_many_there_are(script, small, tmp_path):
    code, _, err = script("run.py", *small, *ENTROPYCACHE, f"results={tmp_path}/1")
    assert code == 0, err
    alone = finished(tmp_path / "1")

    two = [*small, *ENTROPYCACHE, f"results={tmp_path}/2", "shards=2"]
    code, out, err = script("run.py", *two, "shard=1")
    assert code == 0 and "1-of-2: done; of 2 shards these are still missing: 0" in out, err
    assert not (tmp_path / "2" / "runs").exists()
    code, out, err = script("run.py", *two, "shard=0")
    assert code == 0 and "mini_gsm8k strict" in out, err
    assert finished(tmp_path / "2") == alone

    code, out, err = script("run.py", "-m", *small, *ENTROPYCACHE, f"results={tmp_path}/5", "shards=5")
    assert code == 0 and "mini_gsm8k strict" in out, err
    assert finished(tmp_path / "5") == alone
    assert len(list(tmp_path.glob("5/sweeps/*/job_*.json"))) == 5

    code, out, err = script("run.py", *small, *ENTROPYCACHE, f"results={tmp_path}/5", "shards=5")
    assert code == 0 and "mini_gsm8k strict" in out, err


def test_a_shard_that_there_is_not_is_refused_in_one_line(script, small):
    code, _, err = script("run.py", *small, *ENTROPYCACHE, "shards=2", "shard=2")
    assert (code, err) == (1, "error: shard=2 is none of shards=2; 0 to 1 would do\n")
