"""The experiment files: each is the list of jobs that its name promises, and they agree with what profiles compare."""

import itertools

import pytest
import yaml
from hydra import compose, initialize_config_dir

from tests.conftest import ROOT

TAU = (-1, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, float("inf"))
GRID = list(itertools.product((0.1, 0.25, 0.5, 1.0, 2.0), (0, 4, 16, 64)))
TABLE = [
    ("full_recompute", "one_token"),
    ("full_recompute", "threshold"),
    ("fast_dllm_prefix", "threshold"),
    ("fast_dllm_dual", "threshold"),
    ("d2cache", "threshold"),
    ("elastic_cache", "sliding_threshold"),
    ("entropycache", "threshold"),
]
DYNAMIC = [row for row in TABLE[1:] if not row[0].startswith("fast_dllm")]
EXPERIMENTS = {
    "paper_table": TABLE,
    "overhead": DYNAMIC,
    "tau_sweep": [("entropycache", "threshold", tau, 16) for tau in TAU],
    "k_sweep": [("entropycache", "threshold", 0.5, k) for k in (0, 1, 4, 8, 16, 32, 64)],
    "tau_k_grid": [("entropycache", "threshold", tau, k) for tau, k in GRID],
}


def row(config):
    """Method and decoding of a run, and EntropyCache's settings where they are what is swept."""
    method = config["method"]
    return (method["name"], config["decoding"]["name"], method.get("tau"), method.get("k"))


def test_every_experiment_is_known():
    assert {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")} == set(EXPERIMENTS)


def sweeper(name):
    """The jobs of an experiment file, each as the overrides that its sweep adds."""
    params = yaml.safe_load((ROOT / "conf" / "experiment" / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]
    values = [[f"{key}={value}" for value in str(values).split(",")] for key, values in params.items()]
    return list(itertools.product(*values))


CHOSEN = ["model=tiny_llada", "benchmark=mini_gsm8k", "limit=3"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_the_jobs_that_its_name_promises(name):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        configs = [compose("run", [f"+experiment={name}", *job, *CHOSEN]) for job in sweeper(name)]
    expected = EXPERIMENTS[name]
    assert {row(config)[: len(expected[0])] for config in configs} == set(expected)
    assert len(configs) == len(expected)
    assert {(config.limit, config.model.name, config.batch_size) for config in configs} == {(3, "tiny_llada", 1)}


def run_jobs(script, results, monkeypatch, *arguments):
    """Rows of the jobs that a command starts; each runs as far as the model, which is not to be had."""
    monkeypatch.setattr("entry.load", lambda *_: (_ for _ in ()).throw(ValueError("no model")))
    code, _, err = script("run.py", *arguments, *CHOSEN, f"results={results}")
    assert code == 1 and err.endswith("error: no model\n")
    return {row(yaml.safe_load(path.read_text())) for path in results.glob("runs/*/*/*/*/config.yaml")}


def test_an_experiment_is_a_sweep_of_itself(script, tmp_path, monkeypatch):
    jobs = run_jobs(script, tmp_path, monkeypatch, "+experiment=overhead")
    assert {job[:2] for job in jobs} == set(DYNAMIC)


def test_the_command_line_has_the_last_word_in_a_sweep(script, tmp_path, monkeypatch):
    jobs = run_jobs(script, tmp_path, monkeypatch, "-m", "+experiment=tau_k_grid", "method.tau=0.3", "method.k=2,3")
    assert jobs == {("entropycache", "threshold", 0.3, k) for k in (2, 3)}


@pytest.fixture
def comparison(monkeypatch):
    """(rows of every profile's main comparison, rows of its grid), as `expanded` reads them."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from entry import expanded

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        profile = compose("reproduce_paper").profile
        several = profile.rows, profile.sweeps.tau_k_grid.rows
        return [[tuple(row) for text in rows for row in expanded(text)] for rows in several]


def test_profiles_compare_what_the_experiments_run(comparison):
    rows, grid = comparison
    assert rows == sweeper("paper_table")
    assert rows[:2] == grid[:2]  # the references of every speedup
    assert [words[1:] for words in grid[2:]] == sweeper("tau_k_grid")


def test_a_row_with_commas_is_several(comparison, monkeypatch):
    from entry import expanded

    assert expanded("method=d2cache method.sigma=1,2 decoding.forbid=[mask,eos]") == [
        ["method=d2cache", "method.sigma=1", "decoding.forbid=[mask,eos]"],
        ["method=d2cache", "method.sigma=2", "decoding.forbid=[mask,eos]"],
    ]
