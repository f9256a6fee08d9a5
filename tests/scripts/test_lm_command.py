"""lm-eval's command line and Python API give the answers and the accuracy of scripts/run.py."""

import json
import sys

import lm_eval
import pytest
from lm_eval.tasks._index import TaskIndex

from evaluation.benchmarks import load_task
from evaluation.lm_command import main
from tests.conftest import ROOT

DATA = ROOT / "tests" / "golden_prompts" / "data"
SETTINGS = "method=entropycache,tau=0.5,k=16,block_length=4,threshold=0.3"
OVERRIDES = ["method=entropycache", "decoding.block_length=4", "decoding.threshold=0.3", "limit=3"]


def run(script, folder, name, results, *overrides):
    """(answers by index, accuracy by verdict, prompts) of scripts/run.py."""
    where = [f"model={name}", f"model.path={folder}", f"results={results}"]
    code, out, err = script("run.py", *where, *OVERRIDES, *overrides)
    assert code == 0, err
    run = next(results.glob("runs/*/*/*/*/scores.json")).parent
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    accuracy = json.loads((run / "scores.json").read_text())["accuracy"]
    return samples, {name: entry["mean"] for name, entry in accuracy.items()}


def command(monkeypatch, capsys, *arguments):
    """lm-eval's command on our benchmarks alone: indexing its own takes a while. Returns exit code, stdout, stderr."""
    build = TaskIndex.build
    monkeypatch.setattr(TaskIndex, "build", staticmethod(lambda paths, **options: build(paths[-1:], **options)))
    monkeypatch.setattr(sys, "argv", ["entropycache-lm-eval", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as exit_:
        code = exit_.code
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "task", "overrides", "options"),
    [
        ("tiny_llada", "mini_gsm8k", [], []),
        (
            "tiny_dream",
            "gsm8k",
            [f"benchmark.data={DATA}", "benchmark.gen_length=8", "benchmark.num_fewshot=1"],
            ["--metadata", f"data={DATA}", "--num_fewshot", "1"],
        ),
    ],
)
def test_the_command_gives_what_a_run_gives(
    script, checkpoints, tmp_path, monkeypatch, capsys, name, task, overrides, options
):
    folder = checkpoints[name.removeprefix("tiny_")]
    canvas = ",gen_length=8" if "benchmark.gen_length=8" in overrides else ""
    code, out = command(
        monkeypatch, capsys, "--model", "entropycache", "--model_args", f"pretrained={folder},{SETTINGS}{canvas}",
        "--tasks", task, "--limit", "3", "--apply_chat_template", "--fewshot_as_multiturn", "false",
        "--output_path", tmp_path / "lm_eval", "--log_samples", *options,
    )  # fmt: skip
    assert code == 0 and task in out
    samples, accuracy = run(script, folder, name, tmp_path, f"benchmark={task}", *overrides)
    results = json.loads(next(tmp_path.glob("lm_eval/*/results_*.json")).read_text())
    assert {verdict: results["results"][task][f"{verdict},none"] for verdict in accuracy} == accuracy
    assert results["config"]["method"]["k"] == 16
    logged = [
        json.loads(line) for line in next(tmp_path.glob(f"lm_eval/*/samples_{task}_*.jsonl")).read_text().splitlines()
    ]
    assert [line["arguments"]["gen_args_0"]["arg_0"] for line in logged] == [sample["prompt"] for sample in samples]
    assert [line["resps"][0][0] for line in logged] == [sample["text"].split("Question:")[0] for sample in samples]


def test_python_api_and_a_group_of_subtasks(script, checkpoints, tmp_path):
    small = ["benchmark=mini_bbh_cot", "benchmark.num_fewshot=1", "benchmark.gen_length=8", "limit=4"]
    samples, accuracy = run(script, checkpoints["llada"], "tiny_llada", tmp_path, *small)
    results = lm_eval.simple_evaluate(
        model="entropycache",
        model_args=f"pretrained={checkpoints['llada']},{SETTINGS},gen_length=8",
        tasks=[load_task("mini_bbh_cot", num_fewshot=1)],
        apply_chat_template=True,
        fewshot_as_multiturn=False,
        limit=1,
        bootstrap_iters=0,
    )
    answers = {entry["doc"]["input"]: entry["resps"][0][0] for one in results["samples"].values() for entry in one}
    assert answers == {sample["doc"]["input"]: sample["text"].split("\nQ:")[0] for sample in samples}
    assert results["groups"]["mini_bbh_cot"]["strict,none"] == accuracy["strict"]


def test_an_unknown_setting_ends_in_one_line(checkpoints, monkeypatch, capsys):
    arguments = f"pretrained={checkpoints['llada']},method=entropycache,gamma=1"
    code, _ = command(
        monkeypatch, capsys, "--model", "entropycache", "--model_args", arguments, "--tasks", "mini_gsm8k"
    )
    assert code.startswith("error: setting of method entropycache 'gamma' is unknown") and "\n" not in code
