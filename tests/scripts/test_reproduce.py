"""The reproduction from plan to report, on a random-weights checkpoint: done once, taken up where it stopped."""

import json

import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_dir

from entropycache import engine
from evaluation.benchmarks import load_task, requests
from evaluation.generate import Answerer
from evaluation.report import MAIN_COLUMNS
from evaluation.runs import load_run, load_runs
from evaluation.store import strip_timing
from tests.conftest import ROOT

ROWS = ["+setting=reference,full_recompute_threshold", "method=entropycache"]
GRID = ["+setting=reference,full_recompute_threshold", "+setting=entropycache method.tau=0.1,2.0 method.k=0,16"]


def listed(values):
    return "[" + ",".join(f"'{value}'" for value in values) + "]"


@pytest.fixture
def small_profile(checkpoints, tmp_path):
    common = [f"model.path={checkpoints['llada']}", "benchmark.gen_length=8", "decoding.block_length=8"]
    common.append("benchmark.num_fewshot=0")
    return [
        f"profile.rows={listed(ROWS)}",
        f"profile.common={listed(common)}",
        "profile.models.tiny_llada=[mini_gsm8k]",
        "~profile.models.tiny_dream",
        "~profile.sweeps.tau_k_grid",
        "profile.limit=3",
        "profile.prompts=2",
        f"results={tmp_path}",
    ]


def table_of(out):
    return out[out.index("tiny_llada · mini_gsm8k") : out.index("tables and plots:")]


def test_it_ends_with_the_table_and_a_second_run_redoes_nothing(script, small_profile, tmp_path, monkeypatch):
    code, out, err = script("reproduce_paper.py", *small_profile)
    assert code == 0, err
    report = tmp_path / "embedded"
    table = pd.read_csv(report / "main_table.csv")
    assert list(table.columns) == MAIN_COLUMNS
    assert table["method"].tolist() == ["full_recompute", "full_recompute", "entropycache"]
    assert table["n"].tolist() == [3, 3, 3] and table["speedup"].notna().all()
    assert table["speedup"][0] == 1 and table["refresh_rate"][0] == 1
    assert (report / "main_table.md").exists() and list((report / "plots").glob("decoding_*.png"))
    assert str(report) in out

    monkeypatch.setattr("entropycache.engine.advance", lambda *_: pytest.fail("something was generated again"))
    code, again, err = script("reproduce_paper.py", *small_profile)
    assert code == 0, err
    assert table_of(again) == table_of(out)


def test_what_a_timing_answered_is_not_generated_again(script, small_profile, tmp_path, monkeypatch):
    """Of 3 questions 2 are timed, and the first is recorded step by step: it and the third are left to the run."""
    asked = []

    def counted(model, prompts, *arguments, **options):
        asked.append((len(prompts), options["trace"]))
        return engine.stream(model, prompts, *arguments, **options)

    monkeypatch.setattr("evaluation.generate.stream", counted)
    assert script("reproduce_paper.py", *small_profile)[0] == 0
    rows, warmup, prompts = 3, 1, 2
    timed, generated = asked[: rows * (warmup + prompts)], asked[rows * (warmup + prompts) :]
    assert timed == [(1, False)] * len(timed) and generated == [(1, True), (1, False)] * rows

    monkeypatch.setattr(Answerer, "traces", lambda *_: False)
    script("reproduce_paper.py", *small_profile, f"results={tmp_path / 'alone'}", "profile.prompts=1")
    shared, alone = (
        [[strip_timing(sample) | {"batch_size": 0} for sample in run.samples] for run in load_runs(root) if run.scores]
        for root in (tmp_path / "runs", tmp_path / "alone" / "runs")
    )
    assert shared == alone and len(shared) == rows


def test_a_timing_of_other_settings_gives_no_answers(script, small, tmp_path):
    """Another canvas, and other weights: the run generates its own."""
    from evaluation.speed import take_answers

    chosen = [override for override in small if not override.startswith(("limit", "decoding"))]
    code, _, err = script("speed.py", *chosen, "prompts=1", "rows=['+setting=reference decoding.block_length=4']")
    assert code == 0, err
    (measured,) = tmp_path.glob("runs/*/*/speed/*")
    config = load_run(measured).config
    mine = config | config["rows"][0]

    class Told:
        """A run that is told what it is given."""

        missing, given = [0], []

        def append(self, sample):
            self.given.append(sample["id"])

    asked = requests(load_task("mini_gsm8k", num_fewshot=1), 1)
    answerer = Answerer(None, None, None, None, False, False)
    for changed, given in (
        ({}, 1),
        ({"benchmark": config["benchmark"] | {"gen_length": 16}}, 0),
        ({"model": config["model"] | {"fingerprint": "another"}}, 0),
        ({"decoding": mine["decoding"] | {"threshold": 0.5}}, 0),
        ({"predict_all": True}, 0),
    ):
        run = Told()
        run.given = []
        take_answers(run, measured, mine | changed, asked, answerer)
        assert len(run.given) == given, changed


def test_a_sweep_of_a_profile_is_scored_timed_and_drawn(script, small_profile, tmp_path):
    sweep = [o for o in small_profile if "sweeps" not in o] + [f"profile.sweeps.tau_k_grid.rows={listed(GRID)}"]
    code, out, err = script("reproduce_paper.py", *sweep, "profile.sweeps.tau_k_grid.prompts=1", "profile.limit=2")
    assert code == 0, err
    report = tmp_path / "embedded"
    table = pd.read_csv(report / "tau_k_grid.csv")
    assert table[["tau", "k"]].values.tolist() == [[0.1, 0], [0.1, 16], [0.5, 16], [2.0, 0], [2.0, 16]]
    assert table["n"].tolist() == [2] * 5 and table["speedup"].notna().all()
    for axis in ("tau", "k"):
        assert (report / "plots" / f"sweep_{axis}_tiny_llada_mini_gsm8k_threshold.svg").exists()
    assert len(pd.read_csv(report / "main_table.csv")) == 3
    assert "[5/" in out and "tau_k_grid: speed of 6 rows" in out


def test_stopped_in_the_middle_it_finishes_the_rest(script, small_profile, tmp_path, monkeypatch):
    steps, advance = [], engine.advance

    def stopping(*arguments):
        steps.append(1)
        if len(steps) == 40:
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(engine, "advance", stopping)
    code, _, err = script("reproduce_paper.py", *small_profile)
    assert code == 130 and "takes it up where it stopped" in err
    code, out, err = script("reproduce_paper.py", *small_profile)
    assert code == 0, err
    assert "tiny_llada · mini_gsm8k" in out
    script("reproduce_paper.py", *small_profile, f"results={tmp_path / 'whole'}")
    whole, resumed = (pd.read_csv(folder / "embedded" / "main_table.csv") for folder in (tmp_path / "whole", tmp_path))
    columns = ["method", "decoding", "n", "accuracy", "recompute_ratio", "refresh_rate", "tokens_per_forward"]
    pd.testing.assert_frame_equal(whole[columns], resumed[columns])


def test_a_failing_job_does_not_stop_the_others(script, small_profile, tmp_path):
    rows = f"profile.rows={listed(['+setting=reference', 'method=entropycache method.k=-1'])}"
    code, out, err = script("reproduce_paper.py", *small_profile, rows)
    assert code == 1 and "k -1 must be a whole number" in err and "2 of 3 jobs failed" in err
    assert "failed" in (tmp_path / "embedded" / "main_table.md").read_text()


def test_a_model_that_is_missing_fails_alone_and_is_made_up_for(script, small_profile, checkpoints, tmp_path):
    late = tmp_path / "late"
    both = [o for o in small_profile if "common" not in o and "results" not in o]
    both += ["+profile.models.tiny_dream=[mini_gsm8k]", f"profile.rows={listed(['+setting=reference'])}"]
    both += [f"results={tmp_path / 'results'}"]
    common = ["benchmark.gen_length=8", "decoding.block_length=8", "benchmark.num_fewshot=0"]
    (tmp_path / "model").mkdir()
    code, out, err = script("reproduce_paper.py", *both, f"profile.common={listed([*common, f'model.path={late}'])}")
    assert code == 1 and err.splitlines()[-1].startswith("error: 4 of 4 jobs failed: ")
    assert err.splitlines()[-1].count(str(late)) == 1 and "(4 jobs)" in err.splitlines()[-1]
    checkpoints["llada"].rename(late)
    try:
        code, out, err = script(
            "reproduce_paper.py", *both, f"profile.common={listed([*common, f'model.path={late}'])}"
        )
    finally:
        late.rename(checkpoints["llada"])
    assert code == 0, err
    assert {run.status for run in load_runs(tmp_path / "results" / "runs")} == {"done"}


def lines(out):
    """The jobs of a printed plan, each as its name and its last four cells; and what stands below them."""
    jobs, _, notes = out.partition("\n\n")
    return [line.rsplit(None, 4) for line in jobs.splitlines()[1:]], notes


def test_a_dry_run_of_the_paper_profile_is_the_full_plan(script, tmp_path):
    code, out, err = script("reproduce_paper.py", "dry_run=true", "profile=paper", f"results={tmp_path}")
    assert code == 0, err
    (*jobs, total), notes = lines(out)
    names = [job[0].strip() for job in jobs]
    for model, sixth in (("llada_8b_instruct", "humaneval"), ("dream_7b_instruct", "humaneval_instruct")):
        for benchmark in ("gsm8k", "gsm8k_cot", "math500", "mbpp", sixth, "bbh_cot"):
            rows = [name for name in names if name.startswith(f"{model} {benchmark} ") and "tau" not in name]
            assert len(rows) == 7, rows
            assert f"{model} {benchmark}: speed of 7 rows" in names
        assert f"{model} gsm8k tau_k_grid: speed of 22 rows" in names
        assert sum(f"{model} gsm8k entropycache threshold tau=" in name for name in names) == 19  # one is a main row
    assert len(names) == 2 * (6 * 8 + 20) == int(total[0].split()[0])

    by_name = {job[0].strip(): job[1:] for job in jobs}
    prompts, prompt_tokens, canvas, hours = by_name["llada_8b_instruct gsm8k full_recompute one_token"]
    made = 1319 - 99  # the timing answered 100, of which the first is recorded step by step
    assert (prompts, canvas) == ("1,319", f"{made * 256:,}") and float(hours) > 1
    assert prompt_tokens == f"{made * 556:,}"
    assert "LLaDA-8B-Instruct 16.0 GB" in notes and "Dream-v0-Instruct-7B 15.2 GB" in notes
    assert "openai/gsm8k 4.9 MB" in notes and notes.count("openai/gsm8k") == 1
    assert "assumed, for there is no cuda here" in notes
    assert "mbpp, humaneval, humaneval_instruct: run what the model writes, and would fail without" in notes
    assert not list(tmp_path.iterdir())


def test_a_dry_run_measures_a_device_that_is_here(script, small_profile, tmp_path, monkeypatch):
    monkeypatch.setattr("entry.load", lambda *_: pytest.fail("weights were read"))
    code, out, err = script("reproduce_paper.py", *small_profile, "dry_run=true", "estimate.calibrate=0.01")
    assert code == 0, err
    jobs, notes = lines(out)
    assert [job[0].strip() for job in jobs] == [
        "tiny_llada mini_gsm8k: speed of 3 rows",
        "tiny_llada mini_gsm8k full_recompute one_token",
        "tiny_llada mini_gsm8k full_recompute threshold",
        "tiny_llada mini_gsm8k entropycache threshold",
        "4 jobs",
    ]
    assert [job[1] for job in jobs] == ["2", "3", "3", "3", "–"]
    assert jobs[0][3] == str(3 * (1 + 2) * 8) and jobs[1][3] == str(2 * 8)
    assert "measured here" in notes and "Downloads: none." in notes
    assert not list(tmp_path.glob("*/"))

    elsewhere = listed([f"model.path={tmp_path / 'none'}"])
    code, out, err = script("reproduce_paper.py", *small_profile, f"profile.common={elsewhere}", "dry_run=true")
    assert code == 0, err
    jobs, notes = lines(out)
    assert {job[4] for job in jobs} == {"–"} and "tiny_llada: its weights are not here" in notes


@pytest.mark.slow
def test_every_configuration_of_the_embedded_profile_resolves(script, tmp_path):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        profile = compose("reproduce_paper").profile
    code, out, err = script("reproduce_paper.py", "dry_run=true", f"results={tmp_path}", "estimate.calibrate=0.01")
    assert code == 0, err
    places = sum(map(len, profile.models.values()))
    assert len(lines(out)[0]) == places * 8 + 20 + 1


def test_a_dry_run_refuses_settings_that_mean_nothing(script, small_profile):
    code, out, err = script(
        "reproduce_paper.py", *small_profile, "dry_run=true", "profile.rows=['method=d2cache method.sigma=0']"
    )
    assert code == 1 and err.startswith("error: ") and "sigma" in err and err.count("\n") == 1


def test_nothing_is_timed_on_a_gpu_that_is_busy(script, small_profile, tmp_path, monkeypatch):
    gpu = {"--query-gpu=index,uuid": [["0", "GPU-a"]]}
    gpu["--query-compute-apps=gpu_uuid,pid,used_memory"] = [["GPU-a", "4711", "900"]]
    monkeypatch.setattr("evaluation.devices.nvidia_smi", lambda *query: gpu.get(query[0], []))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    code, _, err = script("reproduce_paper.py", *small_profile, "profile.device=cuda")
    assert code == 1 and "device=cuda is busy with process 4711 (900 MiB)" in err and not (tmp_path / "runs").exists()
    code, _, err = script("reproduce_paper.py", *small_profile, "profile.device=cuda", "allow_busy_device=true")
    assert code == 1 and "busy" not in err and "no CUDA device is available here" in err


def test_only_the_embedded_profile_runs_programs_unasked():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        allowed = {name: compose("reproduce_paper", [f"profile={name}"]) for name in ("embedded", "paper")}
        refused = compose("reproduce_paper", ["allow_code_execution=false"])
    assert {name: cfg.allow_code_execution for name, cfg in allowed.items()} == {"embedded": True, "paper": False}
    assert refused.allow_code_execution is False


KNOWN = yaml.safe_load((ROOT / "conf" / "estimate" / "default.yaml").read_text())


@pytest.mark.parametrize("name", [name for name in KNOWN["benchmarks"] if name.startswith("mini_")])
def test_known_sizes_of_generated_benchmarks(name, checkpoints):
    from entropycache.models.checkpoint import FAMILIES
    from entropycache.models.tokenizer import Tokenizer

    tokenizer, template = Tokenizer(checkpoints["llada"]), FAMILIES["llada"].chat_template
    asked = requests(load_task(name, count=20), None, lambda content: template.replace("{content}", content))
    lengths = [len(tokenizer.encode(request.prompt_text)) for request in asked]
    assert sum(lengths) / 20 == pytest.approx(KNOWN["benchmarks"][name]["prompt_tokens"], rel=0.15)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name in KNOWN["benchmarks"] if not name.startswith("mini_")])
def test_known_sizes_of_official_benchmarks(name, shared):
    from entropycache.models.checkpoint import FAMILIES

    template = FAMILIES["llada"].chat_template
    asked = requests(load_task(name, str(shared / "data")), None, lambda c: template.replace("{content}", c))
    characters = sum(len(request.prompt_text) for request in asked) / len(asked)
    assert len(asked) == KNOWN["benchmarks"][name]["items"]
    assert characters / 3.5 == pytest.approx(KNOWN["benchmarks"][name]["prompt_tokens"], rel=0.02)


def test_every_model_of_the_hub_has_a_known_shape():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        names = [path.stem for path in (ROOT / "conf" / "model").glob("*.yaml")]
        paths = {compose(f"model/{name}").model.path for name in names}
    assert {path for path in paths if "/" in path} == set(KNOWN["shapes"])
    assert json.dumps(KNOWN)  # plain values alone
