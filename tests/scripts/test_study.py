"""The studies from the command line: what they leave behind, how a failing model ends, their part of the page."""

import json
from html import escape

import pandas as pd
import pytest

from evaluation.report.studies import read_studies, study_sections
from evaluation.runs import load_runs

SMALL = ["benchmark.gen_length=8", "decoding.block_length=4", "benchmark.num_fewshot=0", "benchmark.count=12"]


@pytest.fixture
def studied(script, checkpoints, tmp_path):
    """`studied(study, *overrides) -> (exit code, stdout, stderr, folder)` on two random checkpoints."""

    def run(study, *overrides, models=None):
        models = models or [f"tiny_{family} model.path={folder}" for family, folder in checkpoints.items()]
        listed = ",".join(f'"{model}"' for model in models)
        code, out, err = script(
            "study.py", f"study={study}", *SMALL, f"models=[{listed}]", f"results={tmp_path}", *overrides
        )
        return code, out, err, tmp_path / "embedded" / "studies" / study

    return run


def test_studies_leave_tables_plots_and_a_section_of_the_page(studied):
    code, out, err, folder = studied("drift", "study.prompts=2", "decoding.threshold=0.5")
    assert code == 0, err
    assert "Does entropy predict drift?" in out and "tiny_dream: entropy finds the" in out
    assert {
        "README.md",
        "study.json",
        "steps.csv",
        "drift.csv",
        "drift.md",
        "drift_tiny_llada.png",
        "drift_tiny_llada.svg",
    } <= {path.name for path in folder.iterdir()}
    record = json.loads((folder / "study.json").read_text())
    assert record["settings"]["study"]["prompts"] == 2 and len(record["conclusion"]) == 4
    assert set(pd.read_csv(folder / "drift_correlation.csv")["model"]) == {"tiny_llada", "tiny_dream"}

    axes = "{rows: [48, 64], layers: [1, 2], vocab: [64, 128], hidden: [32, 64]}"
    base = "{rows: 48, layers: 1, vocab: 64, hidden: 32}"
    short = [f"study.axes={axes}", f"study.base={base}", "study.repeats=2", "study.seconds=0"]
    code, out, err, folder = studied("overhead", *short)
    assert code == 0, err
    slopes = pd.read_csv(folder / "overhead.csv")
    assert set(slopes["axis"]) == {"rows", "layers", "vocab", "hidden"} and slopes["slope"].notna().all()
    assert set(slopes["method"]) == {"fast_dllm_dual", "d2cache", "elastic_cache", "entropycache"}

    found = read_studies(folder.parent)
    assert [study.name for study in found] == ["drift", "overhead"]
    sections = study_sections(folder.parent)
    assert list(sections) == ["Study: drift", "Study: overhead"]
    for study in found:
        section = sections[f"Study: {study.name}"]
        assert section.startswith(f'<section id="study_{study.name}"') and escape(study.conclusion[0]) in section
        assert section.count("<img") == len(study.plots) and "data:image/svg+xml" in section
        text = study.markdown(folder.parent)
        assert study.title in text and all(path.name in text for path in study.plots.values())
    assert study_sections(folder / "none") == {}


def test_calibration_keeps_its_trials_and_does_not_repeat_them(studied, tmp_path, monkeypatch):
    small = ["study.prompts=4", "study.rungs=2", "study.fresh=3", "study.taus=[0.1,inf]", "study.ks=[0,4]"]
    models = None
    code, out, err, folder = studied("calibrate", *small, "study.confidence=0.3", models=models)
    assert code == 0, err
    table = pd.read_csv(folder / "calibrate_trials.csv")
    one = table[table["model"] == "tiny_llada"]
    assert [len(one[one["n"] == n]) for n in (2, 4)] == [4, 2] and (one["state"] == "chosen").sum() == 1
    assert "0.0 points" in out or "points of accuracy on 4 held-out prompts" in out
    runs = load_runs(tmp_path / "trials")
    assert {run.status for run in runs} == {"done", "partial"}, "a dropped pair's run has the samples it was asked for"
    assert len(runs) == 2 * (4 + 1 + 2)

    from evaluation.generate import Answerer

    monkeypatch.setattr(Answerer, "samples", lambda _, asked: asked and pytest.fail("a trial was made again"))
    code, again, err, _ = studied("calibrate", *small, "study.confidence=0.3", models=models)
    assert (code, again) == (0, out)


def test_a_model_that_fails_is_named_and_the_others_are_measured(studied, script, checkpoints, tmp_path):
    models = [f"tiny_llada model.path={tmp_path / 'none'}", f"tiny_dream model.path={checkpoints['dream']}"]
    few = ["study.lengths=[16]", "study.shares=[0.5,1]", "study.repeats=1"]
    code, out, err, folder = studied("cost", *few, models=models)
    assert code == 1 and "study=cost: not measured: tiny_llada" in err and "no such folder" in err
    assert set(pd.read_csv(folder / "cost.csv")["model"]) == {"tiny_dream"}
    code, _, err, folder = studied("volatility", "study.prompts=99")
    assert code == 1 and "study.prompts=99, but tiny_llada has 12 questions" in err and not any(folder.iterdir())
    for wrong, said in (
        ("models=[]", "models=[] must be a list"),
        ("models=tiny_llada", "models=tiny_llada must be a list"),
        ("models=[null]", "models=[None] must be a list"),
        ("seed=abc", "seed=abc must be a number, as 0 is"),
        ("study.seconds=abc", "study.seconds=abc must be a number, as 45 is"),
        ("study.seconds=nan", "study.seconds nan must be a time of 0 or more"),
        ("study.axes.rows=5", "study.axes.rows=5 must be a list"),
        ("device=meta", "device=meta is unknown; cpu, cuda or cuda:<number> would do"),
    ):
        code, _, err = script("study.py", "study=overhead", wrong, f"results={tmp_path}")
        assert code == 1 and said in err and err.count("\n") == 1
    code, _, err, _ = studied("drift", models=["tiny_llada", "tiny_llada model.chat=false"])
    assert code == 1 and "two are called tiny_llada; model.name=<another>" in err
