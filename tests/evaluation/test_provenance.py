"""Where numbers came from: code version, fingerprint of weights, state of the checkout."""

import subprocess

import pytest

from evaluation import provenance


@pytest.fixture
def checkout(tmp_path):
    for name in ("entropycache/engine.py", "baselines/d2cache.py", "evaluation/generate.py", "evaluation/score.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a = 1\n")
    (tmp_path / "evaluation/benchmarks/mini").mkdir(parents=True)
    (tmp_path / "evaluation/benchmarks/mini/shots.txt").write_text("shots")
    return tmp_path


def version(root):
    provenance.code_version.cache_clear()
    return provenance.code_version(root)


@pytest.mark.parametrize(
    "name",
    ["entropycache/engine.py", "baselines/new.py", "evaluation/generate.py", "evaluation/benchmarks/mini/shots.txt"],
)
def test_a_change_of_what_generates_changes_the_code_version(checkout, name):
    before = version(checkout)
    (checkout / name).write_text("a = 2\n")
    assert version(checkout) != before


def test_a_change_of_scoring_does_not(checkout):
    before = version(checkout)
    (checkout / "evaluation/score.py").write_text("a = 2\n")
    (checkout / "entropycache/notes.md").write_text("a")
    assert version(checkout) == before


def test_a_file_moved_changes_the_code_version(checkout):
    before = version(checkout)
    (checkout / "entropycache/engine.py").rename(checkout / "entropycache/motor.py")
    assert version(checkout) != before


def test_the_sources_of_this_checkout_are_found():
    assert len(provenance.code_version()) == 64
    for pattern in provenance.GENERATION_SOURCES[:1]:
        assert list(provenance.ROOT.glob(pattern))


def test_where_one_text_ends_counts():
    assert provenance.sha256_of(["ab", "c"]) != provenance.sha256_of(["a", "bc"])
    assert provenance.sha256_of(["ab"]) == provenance.sha256_of([b"ab"])


def test_a_retrained_checkpoint_has_another_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "WHOLE_FILE", 2**20)
    (tmp_path / "config.json").write_text("{}")
    weights = bytearray(3 * 2**20)
    (tmp_path / "model.safetensors").write_bytes(weights)
    before = provenance.checkpoint_fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("nothing to do with the weights")
    assert provenance.checkpoint_fingerprint(tmp_path) == before
    weights[-1] = 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert provenance.checkpoint_fingerprint(tmp_path) != before


def test_the_checkout_is_dirty_by_its_sources_not_by_its_results(tmp_path):
    assert provenance.git_state(tmp_path) == {"commit": None, "dirty": None}

    def git(*arguments):
        command = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init")
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "a")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/table.md").write_text("|")
    state = provenance.git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "code.py").write_text("a = 2\n")
    assert provenance.git_state(tmp_path)["dirty"] is True


def test_the_record_names_versions_and_no_machine():
    record = provenance.environment()
    assert record["packages"]["torch"]
    assert set(record) == {"git", "python", "packages", "platform", "driver", "command"}
