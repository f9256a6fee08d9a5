"""lm-eval's command line and Python API give the answers and the accuracy of scripts/run.py."""

import importlib.metadata
import json
import sys

import lm_eval
import pytest
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

from evaluation.benchmarks import load_task
from evaluation.generate import Answerer
from evaluation.lm import DiffusionLM, loglikelihood
from evaluation.lm_command import main
from tests.conftest import ROOT, SHARED

pytestmark = pytest.mark.usefixtures("own_index")

DATA = ROOT / "tests" / "golden_prompts" / "data"
OFFICIAL = SHARED / "data"
SMALL = "method=entropycache,tau=0.5,k=16,block_length=4,threshold=0.3"
OVERRIDES = ["method=entropycache", "decoding.block_length=4", "decoding.threshold=0.3"]


def run(script, folder, name, results, *overrides):
    """(answers by index, accuracy by verdict) of scripts/run.py."""
    where = [f"model={name}", f"model.path={folder}", f"results={results}"]
    code, out, err = script("run.py", *where, *overrides)
    assert code == 0, err
    run = next(results.glob("runs/*/*/*/*/scores.json")).parent
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    accuracy = json.loads((run / "scores.json").read_text())["accuracy"]
    return samples, {name: entry["mean"] for name, entry in accuracy.items()}


def command(monkeypatch, capsys, *arguments):
    """Exit code and stdout of lm-eval's command with our model and benchmarks."""
    monkeypatch.setattr(sys, "argv", ["entropycache-lm-eval", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as exit_:
        code = exit_.code
    return code, capsys.readouterr().out


def one_shot(data):
    """The same few shots and a small canvas, for scripts/run.py and for lm-eval."""
    ours = [*OVERRIDES, f"benchmark.data={data}", "benchmark.gen_length=8", "benchmark.num_fewshot=1"]
    return f"{SMALL},gen_length=8", ours, ["--metadata", f"data={data}", "--num_fewshot", "1"]


@pytest.mark.parametrize(
    ("name", "trained", "task", "limit", "settings"),
    [
        pytest.param(
            "tiny_llada", True, "mini_gsm8k", 6, ("method=entropycache,tau=0.5,k=16", ["method=entropycache"], []),
            id="shipped",
        ),
        pytest.param("tiny_dream", False, "gsm8k", 3, one_shot(DATA), id="one_item"),
        pytest.param("tiny_llada", False, "gsm8k", 5, one_shot(OFFICIAL), id="official", marks=pytest.mark.shared),
    ],
)  # fmt: skip
@pytest.mark.parametrize("right", [False, True])
def test_the_command_gives_what_a_run_gives(
    script, checkpoints, tmp_path, monkeypatch, capsys, name, trained, task, limit, settings, right
):
    if right:  # random weights answer nothing right: the first item's answer in their place, to every question
        if trained:
            pytest.skip("answers some itself")
        monkeypatch.setattr(Answerer, "text", lambda *_: "She makes 9 * 2 = 18 dollars.\n#### 18")
    folder = name if trained else checkpoints[name.removeprefix("tiny_")]
    arguments, overrides, options = settings
    code, out = command(
        monkeypatch, capsys, "--model", "entropycache", "--model_args", f"pretrained={folder},{arguments}",
        "--tasks", task, "--limit", limit, "--apply_chat_template", "--fewshot_as_multiturn", "false",
        "--output_path", tmp_path / "lm_eval", "--log_samples", *options,
    )  # fmt: skip
    assert code == 0 and task in out
    samples, accuracy = run(script, folder, name, tmp_path, f"benchmark={task}", f"limit={limit}", *overrides)
    results = json.loads(next(tmp_path.glob("lm_eval/*/results_*.json")).read_text())
    assert {verdict: results["results"][task][f"{verdict},none"] for verdict in accuracy} == accuracy
    assert accuracy["strict"] > 0 or not (trained or right)
    assert accuracy["strict"] == 1 / len(samples) or not right
    assert results["config"]["method"]["k"] == 16
    logged = [
        json.loads(line) for line in next(tmp_path.glob(f"lm_eval/*/samples_{task}_*.jsonl")).read_text().splitlines()
    ]
    assert [line["arguments"]["gen_args_0"]["arg_0"] for line in logged] == [sample["prompt"] for sample in samples]
    assert [line["resps"][0][0] for line in logged] == [sample["text"].split("Question:")[0] for sample in samples]


def test_the_command_is_installed_with_the_package():
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="entropycache-lm-eval")
    assert entry.load() is main


def test_python_api_and_a_group_of_subtasks(script, checkpoints, tmp_path):
    small = ["benchmark=mini_bbh_cot", "benchmark.num_fewshot=1", "benchmark.gen_length=8", "limit=4"]
    samples, accuracy = run(script, checkpoints["llada"], "tiny_llada", tmp_path, *OVERRIDES, *small)
    results = lm_eval.simple_evaluate(
        model="entropycache",
        model_args=f"pretrained={checkpoints['llada']},{SMALL},gen_length=8",
        tasks=[load_task("mini_bbh_cot", num_fewshot=1)],
        apply_chat_template=True,
        fewshot_as_multiturn=False,
        limit=1,
        bootstrap_iters=0,
    )
    answers = {entry["doc"]["input"]: entry["resps"][0][0] for one in results["samples"].values() for entry in one}
    assert answers == {sample["doc"]["input"]: sample["text"].split("\nQ:")[0] for sample in samples}
    assert results["groups"]["mini_bbh_cot"]["strict,none"] == accuracy["strict"]


def test_choices_are_made_by_their_likelihoods(checkpoints):
    """A task of lm-eval's kind "multiple choice", of which each answer is estimated as `loglikelihood` does."""
    docs = [
        {"q": "Two and two?", "choices": ["four", "five"]},
        {"q": "The sky is", "choices": ["blue", "a tin of tea"]},
    ]
    model = DiffusionLM.create_from_arg_string(f"pretrained={checkpoints['llada']},mc_samples=6,seed=3,batch_size=2")
    task = ConfigurableTask(
        config={
            "task": "choices",
            "custom_dataset": lambda **_: {"test": Dataset.from_list(docs)},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{q}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": 0,
        }
    )
    results = lm_eval.simple_evaluate(model=model, tasks=[task], bootstrap_iters=0)
    encode, transformer = model.answerer.prompt_ids, model.answerer.model

    def estimated(question, choice):
        prefix, whole = encode(question), encode(f"{question} {choice}")
        return loglikelihood(transformer, prefix, whole[len(prefix) :], 6, 3, batch_size=2)

    direct = [[estimated(doc["q"], choice) for choice in doc["choices"]] for doc in docs]
    reported = [[float(value) for ((value, _),) in sample["resps"]] for sample in results["samples"]["choices"]]
    assert reported == [pytest.approx(values, rel=1e-9) for values in direct]
    assert results["results"]["choices"]["acc,none"] == sum(first > second for first, second in direct) / 2


def test_an_unknown_setting_ends_in_one_line(checkpoints, monkeypatch, capsys):
    arguments = f"pretrained={checkpoints['llada']},method=entropycache,gamma=1"
    code, _ = command(
        monkeypatch, capsys, "--model", "entropycache", "--model_args", arguments, "--tasks", "mini_gsm8k"
    )
    assert code.startswith("error: setting of method entropycache 'gamma' is unknown") and "\n" not in code
