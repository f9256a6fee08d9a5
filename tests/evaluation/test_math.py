"""Judging MATH answers (CASES S3, S4)."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.grading import GraderUnavailableError, MathGrader
from evaluation.scorers import SCORERS

TOWER = "9^{9^{9^{9^{9}}}}"


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    grader = MathGrader()
    yield grader
    grader.close()


PAIRS = [  # gold, answer, equal
    ("17", "17", True),
    ("17", "17.0", True),
    ("58", "58", True),
    (r"(3, \frac{\pi}{2})", r"(3, \frac{\pi}{2})", True),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)", True),
    (r"(3, \frac{\pi}{2})", r"(3, \frac{\pi}{3})", False),
    (r"\frac{1}{2}", "0.5", True),
    (r"\frac12", r"\frac{2}{4}", True),
    (r"3\sqrt{13}", r"\sqrt{117}", True),
    ("5", r"\pm 5", False),
    (r"\pm 5", "5", False),
    ("n=1,2,3", "n=2,3,4", False),
    ("1,2,3", "3,2,1", True),
    ("[1,2]", "(1,2)", False),
    (r"\text{Evelyn}", r"\text{Evelyn}", True),
    (r"\text{Evelyn}", r"\text{Briana}", False),
    (r"\$32,\!348", "32348", True),
    ("x^2+1", "1+x^2", True),
    ("p-q", "q-p", False),
    # math-verify alone compares 15 digits, 6 of them decimals
    ("1/2^{97}", "1/2^{96}", False),
    ("1/2^{97}", "2^{-97}", True),
    ("(1, 1/2^{97})", "(1, 1/2^{96})", False),
    ("10^{-7}", "0", False),
    ("2^{97}", "2^{97}+1", False),
    ("2^{97}", "158456325028528675187087900672", True),
    (r"\frac13", "0.333333", True),
    # nothing that can be read as an answer
    ("17", "", False),
    ("17", r"\frac{", False),
    ("17", "}{", False),
]


@pytest.mark.parametrize("gold, answer, equal", PAIRS)
def test_pairs(grader: MathGrader, gold: str, answer: str, equal: bool) -> None:
    """S3."""
    assert grader.grade(gold, answer).correct is equal


def test_gold_comes_first(grader: MathGrader) -> None:
    """An interval stands for a gold inequality, not the other way round: the order is held."""
    assert grader.grade("1<x<2", "(1,2)").correct
    assert not grader.grade("(1,2)", "1<x<2").correct


def test_gold_that_is_no_expression(grader: MathGrader) -> None:
    with pytest.raises(ValueError, match="gold answer '' cannot be parsed"):
        grader.grade("", "17")


def test_power_tower_ends_in_time_in_any_thread() -> None:
    """S3: the limit holds outside the main thread, and the next answer is judged as ever."""
    grader = MathGrader(seconds=2)
    grades = []

    def work() -> None:
        grades.extend([grader.grade("3", TOWER), grader.grade("3", "3")])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=300)
    assert not thread.is_alive()
    assert [grade.correct for grade in grades] == [False, True]
    assert grades[0].note == "no verdict within 2 s of processor time"
    grader.close()


def worker(folder: Path, source: str) -> Path:
    path = folder / "worker.py"
    path.write_text(source, encoding="utf-8")
    return path


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    source = "print('{\"ready\": true}', flush=True)\ninput()\nraise SystemExit(3)"
    grader = MathGrader(worker=worker(tmp_path, source))
    for _ in range(2):
        grade = grader.grade("3", "3")
        assert not grade.correct
        assert grade.note == "the comparison ended its process (status 3)"


UNAVAILABLE = [
    ('print(\'{"unavailable": "No module named math_verify"}\')', "No module named math_verify"),
    ("raise SystemExit(1)", "its process ended at once"),
]


@pytest.mark.parametrize("source, reason", UNAVAILABLE)
def test_a_grader_that_cannot_be_used_is_an_error(tmp_path: Path, source: str, reason: str) -> None:
    """S4: never a wrong answer."""
    with pytest.raises(GraderUnavailableError, match=reason):
        MathGrader(worker=worker(tmp_path, source)).grade("3", "3")


def test_the_real_worker_says_so_where_math_verify_is_missing(tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('built for antlr4 4.11')", encoding="utf-8")
    path = Path(sys.modules["evaluation.grading"].__file__ or "").with_name("math_worker.py")
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy, sys; sys.argv = ['w', '1']; sys.path.insert(0, {str(tmp_path)!r}); "
         f"runpy.run_path({str(path)!r}, run_name='__main__')"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == '{"unavailable": "built for antlr4 4.11"}\n'


COMPOSE = "from hydra import compose, initialize_config_dir\nwith initialize_config_dir({conf!r}, version_base='1.3'): compose('run', ['model=tiny_llada', 'method=full_recompute', 'benchmark=math500'])\n"  # noqa: E501
GRADE = "from math_verify import parse, verify\nassert verify(parse('$\\\\boxed{\\\\frac{1}{2}}$'), parse('$0.5$'))\n"


@pytest.mark.parametrize("order", ["compose, grade", "grade, compose"])
def test_hydra_and_the_grader_share_an_environment(order: str) -> None:
    """S4: both parse with antlr4, and would each have its own version of it."""
    conf = str(Path(__file__).resolve().parents[2] / "conf")
    steps = {"compose": COMPOSE.format(conf=conf), "grade": GRADE}
    subprocess.run([sys.executable, "-c", "".join(steps[step] for step in order.split(", "))], check=True)


ANSWERS = [
    (r"\[ \boxed{17} \]", True, True),
    (r"So it is \boxed{17.0}.", True, False),
    ("The final answer is $17$.", True, True),
    (r"\boxed{1} no: \boxed{17}", True, True),
    (r"\boxed{17} no: \boxed{1}", False, False),
    ("I do not know.", False, False),
    ("", False, False),
    (r"\boxed{17}" + "\n\nProblem: another\n\nSolution: \\boxed{1}", True, True),
]


@pytest.mark.parametrize("text, equal, exact", ANSWERS)
def test_scorer(text: str, equal: bool, exact: bool) -> None:
    """Both verdicts side by side, with what was extracted."""
    score = SCORERS["math500"]({"answer": "17"}, text)
    assert (score["math_verify"].correct, score["exact_match"].correct) == (equal, exact)
    assert score["math_verify"].extracted == score["exact_match"].extracted
