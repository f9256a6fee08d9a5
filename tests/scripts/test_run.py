"""One run from the command line: what it records, that it is not done twice, how bad input ends (R1-R3, R5, R7)."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from entropycache import engine

ENTROPYCACHE = ["method=entropycache", "decoding.threshold=0.3"]


def runs(results):
    return sorted(path.parent for path in Path(results).glob("runs/*/*/*/*/config.yaml"))


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_run_records_every_figure_and_is_done_once(
    script, checkpoints, small, tmp_path, family, monkeypatch
):  # R1, R5
    overrides = [*small, *ENTROPYCACHE, f"model=tiny_{family}", f"model.path={checkpoints[family]}", "trace=true"]
    code, out, err = script("run.py", *overrides)
    assert code == 0, err
    (folder,) = runs(tmp_path)
    assert str(folder) in out and "mini_gsm8k strict 0.0" in out
    assert {"DONE", "config.yaml", "manifest.json", "samples.jsonl", "scores.json", "steps.parquet"} <= {
        p.name for p in folder.iterdir()
    }
    made = samples(folder)
    assert [sample["index"] for sample in made] == [0, 1, 2]
    for sample in made:
        assert sample["rows_total"] == sample["steps"] * (sample["prompt_tokens"] + 8)
        assert sample["recompute_ratio"] == pytest.approx(sample["rows_computed"] / sample["rows_total"])
        assert sample["decision_seconds"] == pytest.approx(sum(sample["decision_parts"].values()))
        assert 0 < sample["decision_seconds"] < sample["seconds"]
        assert sample["generated_tokens"] <= len(sample["tokens"]) == 8
        assert sample["prompt"].count("Question:") == 2
        assert sample["prompt"].count("<|startoftext|>") == (family == "llada")
        assert sample["flops"] > 0 and sample["refreshes"] >= 1
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["device"] == "cpu" and manifest["num_fewshot"] == 1 and len(manifest["fewshot_sha256"]) == 64

    monkeypatch.setattr(engine, "advance", lambda *_: pytest.fail("a finished run was run again"))
    before = (folder / "samples.jsonl").read_bytes()
    code, again, err = script("run.py", *overrides)
    assert (code, again) == (0, out) and (folder / "samples.jsonl").read_bytes() == before


def test_another_tau_is_another_run(script, small, tmp_path):  # R1
    for tau in (0.1, 0.5):
        assert script("run.py", *small, *ENTROPYCACHE, f"method.tau={tau}")[0] == 0
    assert len(runs(tmp_path)) == 2


def test_a_sweep_survives_a_failing_job_and_redoes_it_alone(script, checkpoints, small, tmp_path, monkeypatch):  # R3
    late = tmp_path / "late"
    paths = f"model.path={checkpoints['llada']},{late},{checkpoints['dream']}"
    sweep = ["-m", *small, *ENTROPYCACHE, paths]
    code, out, err = script("run.py", *sweep)
    assert code == 1 and "late" in err
    (table,) = tmp_path.glob("sweeps/*/sweep.csv")
    states = pd.read_csv(table)["state"].tolist()
    assert [state.partition(":")[0] for state in states] == ["done", "failed", "done"]
    assert f"{late}: no such folder" in states[1]

    shutil.copytree(checkpoints["llada"], late)
    (late / "note.json").write_text("{}")  # other files, so another checkpoint than the first job's
    shutil.rmtree(tmp_path / "sweeps")
    asked = []

    def counted(model, prompts, *arguments, **options):
        asked.append(len(prompts))
        return engine.stream(model, prompts, *arguments, **options)

    monkeypatch.setattr("evaluation.generate.stream", counted)
    code, out, err = script("run.py", *sweep)
    assert code == 0, err
    assert [n for n in asked if n] == [3]  # the failed job alone
    assert "failed" not in (next(tmp_path.glob("sweeps/*/sweep.md"))).read_text()


def test_a_sweep_over_two_settings_has_a_table_and_a_plot(script, small, tmp_path):
    code, out, err = script("run.py", "-m", *small, "method=entropycache", "method.tau=0.05,2.0", "method.k=4,16")
    assert code == 0, err
    (folder,) = tmp_path.glob("sweeps/*")
    assert {"sweep.csv", "sweep.md", "sweep.png", "sweep.svg"} <= {path.name for path in folder.iterdir()}
    table = pd.read_csv(folder / "sweep.csv")[["method.tau", "method.k", "state"]]
    assert table.values.tolist() == [[tau, k, "done"] for tau in (0.05, 2.0) for k in (4, 16)]


def broken(checkpoints, tmp_path, kind):
    folder = tmp_path / kind
    shutil.copytree(checkpoints["llada"], folder)
    path = folder / "model.safetensors"
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    elif kind == "unknown":
        (folder / "config.json").write_text('{"model_type": "mamba"}')
    else:
        path.unlink()
        (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "model-00001-of-00001.safetensors"}}'
        )
    return f"model.path={folder}"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["benchmark.gen_length=10"], "gen_length 10 is not a multiple of block_length 4; gen_length 8 or 12 would do"),
        (["benchmark.gen_length=1024"], "rows exceed the model's 700 positions; a prompt of"),
        (["method.sigma=1"], "Key 'sigma' is not in struct"),
        (["+method.nonsense=1"], "entropycache has no setting 'nonsense'; known: tau, k, refresh_on_new_window"),
        (["decoding.window=sliding", "+decoding.window_length=0"], "window_length 0 must be a whole number, 1 or"),
        (["method=fast_dllm_dual", "decoding=sliding_threshold"], "FastDLLM does not work with window 'sliding'"),
        (["method=nonesuch"], "Could not find 'method/nonesuch' Available options in 'method': "),
        (["benchmark.name=nonesuch"], "benchmark.name=nonesuch is unknown; one of gsm8k"),
        (["method.tau=0.1,0.2"], "To sweep over it, add --multirun"),  # R7
        (["model.dtype=float8"], "model.dtype=float8 is unknown; float32"),
        (["seed=abc"], "seed=abc must be a number, as 0 is"),
        (["trace=abc"], "trace=abc must be true or false, as False is"),
        (["limit=0"], "limit 0 must be a whole number of questions, 1 or above"),
        (["limit=-1"], "limit -1 must be a whole number of questions, 1 or above"),
        (["device=cuda"], "no CUDA device is available here; device=cpu would do"),
        (["benchmark=gsm8k", "benchmark.data=/nowhere"], "/nowhere"),
        (["results=/dev/null/here"], "cannot write /dev/null/here"),
        ("truncated", "damaged or truncated safetensors file"),
        ("unknown", "model_type 'mamba' is not supported; known types: llada, Dream"),
        ("shard", "missing shard model-00001-of-00001.safetensors"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
def test_bad_input_ends_in_one_line_that_says_what_would_do(script, checkpoints, small, tmp_path, overrides, says):
    wrong = [broken(checkpoints, tmp_path, overrides)] if isinstance(overrides, str) else overrides
    code, out, err = script("run.py", *small, *ENTROPYCACHE, *wrong)
    assert code == 1 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err


def test_a_missing_choice_is_asked_for(script, tmp_path):
    code, _, err = script("run.py", "model=tiny_llada", "benchmark=mini_gsm8k", f"results={tmp_path}")
    assert code == 1 and "method" in err and err.count("\n") == 1


def test_a_path_with_special_characters_arrives_unchanged(script, checkpoints, small, tmp_path):  # R7
    folder = tmp_path / "step=300,v2" / "(a)#1%"
    shutil.copytree(checkpoints["llada"], folder)
    code, out, err = script("run.py", *small, *ENTROPYCACHE, "limit=1", f"model.path='{folder}'")
    assert code == 0, err
