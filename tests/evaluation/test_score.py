"""Scores of samples, from text to verdict to file (CASES S1, S2, S7 to S9)."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation import execution
from evaluation.benchmarks import load_task, requests
from evaluation.execution import ExecutionError
from evaluation.score import score_run, summary
from evaluation.scorers import SCORERS, CodeOptions, CodeScorer, Judged, Score, Verdict
from scripts import score as script

ROOT = Path(__file__).resolve().parents[2]


def write_run(folder: Path, benchmark: str, answers: Sequence[tuple[Mapping[str, Any], str]]) -> Path:
    """A run's folder with one sample an answer."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"benchmark": {"name": benchmark}}), encoding="utf-8")
    with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
        for index, (doc, text) in enumerate(answers):
            sample = {"id": f"{benchmark}/test/{index}", "index": index, "subtask": doc.get("subtask"), "doc": doc}
            sample |= {
                "text": text,
                "target": "gold",
                "prompt": f"solved\n\nopen {index}",
                "generated_tokens": len(text),
            }
            file.write(json.dumps(sample) + "\n")
    return folder


# -- one answer --------------------------------------------------------------------------------------------------------

GSM8K = [  # gold, text, strict, flexible
    ("46", "That comes to $46.00.", False, True),
    ("46", "#### $46.00.", True, True),
    ("1250", "So there are 1,250 beads", False, True),
    ("9500", "It holds 9{,}500 litres", False, True),
    ("72", "So 72 clips, in total ...", False, True),
    ("-7", "Total is -7", False, True),
    ("12", "12 left, of 40", False, False),
    ("42", "#### 9 no #### 42", True, True),
    ("42", "It is 42.\n#### 42\n\nQuestion: What of 9?\nAnswer: 9\n#### 9", True, True),
    ("42", "#### 42<|eot_id|>#### 9", True, True),
    ("42", "#### 42\n\nThat is all of the 50.", True, False),
    ("2,125", "#### 2125", True, True),
    ("42", "```\n6 * 7 = 42\n#### 42\n```", True, True),
    ("42", "", False, False),
    ("42", "I do not know.", False, False),
    ("42", "#### ", False, False),
]


@pytest.mark.parametrize("gold, text, strict, flexible", GSM8K)
def test_gsm8k(gold: str, text: str, strict: bool, flexible: bool) -> None:
    """S1: both verdicts side by side, what was extracted kept, and the table's verdict named."""
    scorer = SCORERS["gsm8k"]
    score = scorer({"answer": f"6 * 7 = 42\n#### {gold}"}, text)
    assert (score["strict"].correct, score["flexible"].correct) == (strict, flexible)
    assert scorer.shown == "strict"
    assert (score["strict"].extracted is None) == ("####" not in text or text == "#### ")


GSM8K_COT = [
    ("42", "6 * 7 = 42. The answer is 42.", True, True),
    ("42", "The answer is $42.00", True, True),
    ("42", "The answer is 42.\n\nQ: What of 9?\nA: The answer is 9.", True, True),
    ("42", "so 42", False, True),
    ("42", "", False, False),
]


@pytest.mark.parametrize("gold, text, strict, flexible", GSM8K_COT)
def test_gsm8k_cot(gold: str, text: str, strict: bool, flexible: bool) -> None:
    score = SCORERS["gsm8k_cot"]({"answer": f"#### {gold}"}, text)
    assert (score["strict"].correct, score["flexible"].correct) == (strict, flexible)


BBH = [
    ("(B)", "So the answer is (B). ", True, True),
    ("(B)", "So the answer is (B)", True, True),
    ("False", "the answer is True. So the answer is False.", True, True),
    ("3.5", "So the answer is 3.5.", True, True),
    (
        "(B)",
        "The Queen moves to Q7.\n\nSo the answer is (B).",
        True,
        True,
    ),  # cut neither at the Q nor at the blank line
    ("(B)", "So the answer is (B).\n\nQ: Another?\nA: So the answer is (C).", True, True),
    ("Yes", "So the answer is yes.", False, True),
    ("(B)", "So the answer is B.", False, True),
    ("(B)", "It must be (B).", False, True),
    ("(B)", "The answer is option (B), not (C).", False, True),
    ("Yes", "The answer is Yes, since no step is left.", False, True),
    ("Yes", "The answer is No, since yes would need another step.", False, False),
    ("] ) >", "So the answer is ] ) >.", True, True),
    ("] ) >", "So the answer is ] ).", False, False),
    ("(B)", "So the answer is (C).", False, False),
    ("(B)", "", False, False),
]


@pytest.mark.parametrize("gold, text, strict, flexible", BBH)
def test_bbh(gold: str, text: str, strict: bool, flexible: bool) -> None:
    """S2."""
    score = SCORERS["bbh_cot"]({"target": gold}, text)
    assert (score["strict"].correct, score["flexible"].correct) == (strict, flexible)


# -- code ------------------------------------------------------------------------------------------------------------

ALLOWED = CodeOptions(allow_code_execution=True)
MBPP = {
    "task_id": 1,
    "text": "Double the root's number.",
    "code": "class Node:\n    def __init__(self, n):\n        self.n = n\n\ndef double(node):\n    return 2 * node.n\n",
    "test_setup_code": "root = Node(3)\nother = Node(4)\n",
    "test_list": ["assert double(root) == 6", "assert double(other) == 8", "assert double(Node(5)) == 10"],
}


def test_every_assert_and_the_set_up_code_run() -> None:
    """S8: a constant that satisfies the first assert only fails."""
    constant = MBPP["code"].replace("2 * node.n", "6")  # type: ignore[attr-defined]
    docs, texts = [MBPP] * 3, [f"{MBPP['code']}[DONE]", f"{constant}[DONE]", "I cannot."]
    judged = SCORERS["mbpp"].score_all(docs, texts, ALLOWED)
    assert [score["pass@1"].correct for score in judged.scores] == [True, False, False]
    assert judged.scores[1]["pass@1"].note is not None
    assert judged.record["canaries"] == {"canonical": 1.0, "pass": 0.0, "half and half": 0.5}
    assert judged.record["isolation"]


def test_canaries_stop_a_scorer_that_judges_wrong() -> None:
    """S7: before any score, solutions known to be right take the whole way themselves."""
    scorer = SCORERS["mbpp"]
    assert isinstance(scorer, CodeScorer)
    lossy = replace(scorer, assemble=lambda doc, text: "")
    with pytest.raises(ExecutionError, match="canaries: canonical solutions score 0.000, expected 1.0"):
        lossy.score_all([MBPP], ["[DONE]"], ALLOWED)


def test_code_is_not_run_unless_allowed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "mbpp", [(MBPP, "[DONE]")])
    with pytest.raises(ExecutionError, match="allow_code_execution=true"):
        score_run(run)
    assert not (run / "scores.json").exists()


def test_a_warning_where_most_answers_are_no_programs() -> None:
    """S7."""
    judged = SCORERS["mbpp"].score_all([MBPP] * 3, ["def double(", "double", f"{MBPP['code']}[DONE]"], ALLOWED)
    assert "2 of 3 programs fail on syntax or unknown names" in judged.record["warning"]


# -- a run -----------------------------------------------------------------------------------------------------------


def test_score_run(tmp_path: Path) -> None:
    doc = {"answer": "#### 42"}
    run = write_run(tmp_path / "run", "gsm8k", [(doc, "#### 42"), (doc, "so 42"), (doc, "#### 9"), (doc, "")])
    result = score_run(run)
    assert result == json.loads((run / "scores.json").read_text(encoding="utf-8"))
    assert result["n"] == 4
    assert result["shown"] == "strict"
    assert result["until"] == ["Question:"]
    assert result["accuracy"]["strict"]["mean"] == 0.25
    assert result["accuracy"]["flexible"]["mean"] == 0.5
    assert result["samples"][1] == {
        "id": "gsm8k/test/1",
        "strict": {"correct": False, "extracted": None, "note": None},
        "flexible": {"correct": True, "extracted": "42", "note": None},
    }
    assert (result["subtasks"], result["micro"], result["macro"], result["isolation"]) == (None, None, None, None)


def test_rescoring_changes_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "gsm8k", [({"answer": "#### 42"}, "#### 42")])
    score_run(run)
    first = (run / "scores.json").read_bytes()
    score_run(run)
    assert (run / "scores.json").read_bytes() == first
    assert {path.name for path in run.iterdir()} == {"config.yaml", "samples.jsonl", "scores.json"}


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "gsm8k", [({"answer": "#### 42"}, "#### 42")] * 2)
    content = (run / "samples.jsonl").read_bytes()
    (run / "samples.jsonl").write_bytes(content[:-20])
    assert score_run(run)["n"] == 1


def test_group_means_are_labelled(tmp_path: Path) -> None:
    """S9: 250 items at .80 and 187 at .40."""
    sizes = {"navigate": (250, 200), "snarks": (187, 75)}
    samples = [{"id": f"{name}/{i}", "subtask": name} for name, (n, _) in sizes.items() for i in range(n)]
    rights = [i < right for _, (n, right) in sizes.items() for i in range(n)]
    scores = [Score({name: Verdict(right, "x") for name in ("strict", "flexible")}) for right in rights]
    result = summary("bbh_cot", samples, Judged(scores))
    assert result["micro"]["mean"] == pytest.approx((200 + 75) / 437)
    assert result["macro"]["mean"] == pytest.approx((200 / 250 + 75 / 187) / 2)
    assert result["accuracy"]["strict"]["mean"] == pytest.approx(result["micro"]["mean"])
    assert result["subtasks"]["navigate"]["strict"]["n"] == 250


def test_mini_bbh_is_scored_by_subtask(tmp_path: Path) -> None:
    asked = requests(load_task("mini_bbh_cot", count=8))
    answers = [(request.doc, request.target if request.subtask == "navigate" else "") for request in asked]
    result = score_run(write_run(tmp_path / "run", "mini_bbh_cot", answers))
    assert {name: verdicts["strict"]["mean"] for name, verdicts in result["subtasks"].items()} == {
        "boolean_expressions": 0,
        "navigate": 1,
        "object_counting": 0,
        "word_sorting": 0,
    }
    assert result["macro"]["mean"] == result["micro"]["mean"] == 0.25


BAD_RUNS = [
    ("gsm8k", "", "holds no samples"),
    ("gsm9k", '{"index": 0, "id": "a", "doc": {}, "text": ""}\n', "benchmark.name=gsm9k has no scorer"),
    ("gsm8k", "torn\n{}\n", "not a record"),
]


@pytest.mark.parametrize("benchmark, samples, message", BAD_RUNS)
def test_bad_runs(benchmark: str, samples: str, message: str, tmp_path: Path) -> None:
    """R2: no samples is an error, not 0.0."""
    run = write_run(tmp_path / "run", benchmark, [])
    (run / "samples.jsonl").write_text(samples, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        score_run(run)


def test_scoring_needs_neither_torch_nor_lm_eval_nor_hydra(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "gsm8k", [({"answer": "#### 42"}, "#### 42")])
    code = (
        "import sys\nfor name in ('torch', 'lm_eval', 'hydra', 'datasets', 'transformers'): sys.modules[name] = None\n"
        f"sys.path.insert(0, {str(ROOT)!r})\nfrom scripts.score import main\nmain([{str(run)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "gsm8k, n = 1: strict 100.00 %, flexible 100.00 %" in done.stdout


# -- the script --------------------------------------------------------------------------------------------------------


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doc = {"answer": "#### 42"}
    write_run(tmp_path / "runs/gsm8k/model/method/0123abcd", "gsm8k", [(doc, "#### 42"), (doc, "so 41")])
    script.main(["0123abcd", "--show", "20", "--wrong", "--results", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "gsm8k, n = 2: strict 50.00 ± 50.00 %" in shown
    assert "open 1" in shown and "open 0" not in shown
    assert "[8 characters that all prompts share]" in shown
    assert "so 41" in shown
    assert "strict: wrong, extracted: None" in shown
    assert "flexible: wrong, extracted: 41" in shown


BAD_ARGUMENTS = [
    (["nowhere"], "nowhere is no run's folder"),
    (["workers=two", "."], "workers=two: not a value for workers; for example workers=2"),
    (["allow_code_execution=1", "."], "not a value for allow_code_execution; for example allow_code_execution=true"),
]


@pytest.mark.parametrize("arguments, message", BAD_ARGUMENTS)
def test_script_says_what_is_wrong_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message) as ended:
        script.main(arguments)
    assert "\n" not in str(ended.value)


def test_settings_reach_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "a=b" / "run", "mbpp", [(MBPP, f"{MBPP['code']}[DONE]")])
    seen: list[dict[str, Any]] = []
    real = execution.run_programs

    def watched(programs: Sequence[execution.Program], **options: Any) -> list[execution.Result]:
        seen.append(options)
        return real(programs, **options)

    monkeypatch.setattr(execution, "run_programs", watched)
    script.main([str(run), "allow_code_execution=true", "workers=1", "timeout=2.5"])
    assert {options["workers"] for options in seen} == {1}
    assert seen[-1]["timeout"] == 2.5
