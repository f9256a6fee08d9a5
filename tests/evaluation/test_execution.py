"""Judging generated code: human-eval's rule, a hostile suite, and what stands between the code and this machine."""

import collections
import gzip
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import execution
from evaluation.execution import (
    ExecutionError,
    Program,
    Result,
    check_canaries,
    human_eval_program,
    isolation,
    mbpp_program,
    run_programs,
    suspicion,
    without_bodies,
)
from evaluation.sandbox import confinement, wire
from tests.conftest import ROOT, SHARED

TWICE = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n\ncheck(twice)\n"
RIGHT = "def twice(n):\n    return 2 * n\n"


def twice(source: str, id: str = "twice", **fields: Any) -> Program:
    return Program(id, source, TWICE, ("twice",), **fields)


def run(*programs: Program, **options: Any) -> list[Result]:
    return run_programs(programs, allow_code_execution=True, **options)


def passes(source: str, tests: str, *entry_points: str, **fields: Any) -> bool:
    return run(Program("one", source, tests, entry_points, **fields))[0].passed


# ---- the rule


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (RIGHT, "passed"),
        ("import math\n" + RIGHT, "passed"),
        ("def twice(n):\n    return n + 2\n", "failed"),  # meets the first assert only
        ("def twice(n):\n    return n +\n", "syntax"),
        ("def twice(n):\nreturn n\n", "syntax"),
        ("def twice(n):\n    return double(n)\n", "name"),
        ("def double(n):\n    return 2 * n\n", "name"),
        ("def twice(n):\n    return 1 / 0\n", "error"),
        ("", "name"),
        ("def twice(n):\n    return [2 * n for _ in range(10**12)]\n", "timeout"),
        ("def twice(n):\n    return bytearray(10**11)\n", "memory"),
        ("raise SystemExit(0)\n", "ended"),
        ("import sys\ndef twice(n):\n    sys.exit()\n", "ended"),
        ("import os\ndef twice(n):\n    os._exit(0)\n", "ended"),
    ],
)
def test_status(source: str, status: str) -> None:
    seconds = 0.5 if status == "timeout" else None
    result, after = run(twice(source, "it", timeout=seconds), twice(RIGHT), workers=1)
    assert (result.id, result.status, result.passed) == ("it", status, status == "passed")
    assert after.passed


def test_the_failing_assert_is_shown_on_one_line() -> None:
    (result,) = run(twice("def twice(n):\n    return n + 2\n"))
    assert result.detail == "AssertionError: in `assert candidate(5) == 10`"
    (result,) = run(twice("def twice(n):\n    raise ValueError('a\\x1b[2J\\nb')\n"))
    assert result.detail == "ValueError: a [2J b: in `assert candidate(2) == 4`"


def test_results_are_in_the_programs_order() -> None:
    slow = "import time\ntime.sleep(0.3)\n" + RIGHT
    results = run(twice(slow, "a"), twice("", "b"), twice(RIGHT, "c"), workers=3)
    assert [(result.id, result.passed) for result in results] == [("a", True), ("b", False), ("c", True)]


def test_human_eval_programs_use_the_prompts_helpers_and_the_answers_function() -> None:
    doc = {
        "task_id": "Test/0",
        "prompt": 'def half(n):\n    return n // 2\n\n\ndef twice(n):\n    """Twice n."""\n',
        "entry_point": "twice",
        "test": "def check(candidate):\n    assert half(candidate(3)) == 3\n",
    }
    assert run(human_eval_program(doc, doc["prompt"] + "    return 2 * n\n"))[0].passed
    assert not run(human_eval_program(doc, doc["prompt"] + "    pass\n"))[0].passed
    # the helper that the tests use is the prompt's own, whatever the answer makes of it
    assert not run(human_eval_program(doc, doc["prompt"] + "    return 0\n\ndef half(n):\n    return 3\n"))[0].passed


def test_mbpp_runs_every_assert_and_the_set_up_code() -> None:
    doc: dict[str, Any] = {
        "task_id": 1,
        "code": "class Node:\n    def __init__(self, v):\n        self.value = v\n\ndef value(n): return n.value\n",
        "test_setup_code": "root = Node(3)\nroot.left = Node(4)",
        "test_list": ["assert value(root) == 3", "assert value(root.left) == 4"],
    }
    constant = "class Node:\n    def __init__(self, value):\n        pass\n\ndef value(n):\n    return 3\n"
    assert mbpp_program(doc, constant).entry_points == ("value",)
    assert run(mbpp_program(doc, doc["code"]))[0].passed
    assert run(mbpp_program(doc, constant))[0].status == "failed"
    assert run(mbpp_program(doc | {"test_setup_code": ""}, doc["code"]))[0].status == "name"


def test_a_builtins_name_is_the_solutions_only_where_the_item_asks_for_it() -> None:
    assert passes("def sum(a, b):\n    return a + b\n", "assert sum(1, 2) == 3", "sum")
    assert not passes("def f(x):\n    return 1\ndef abs(x):\n    return 0\n", "assert abs(f(1) - 2) < 1e-6", "f")


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("def f(a):\n    a.sort()\n", "x = [3, 1]\nassert f(x) is None and x == [1, 3]"),
        ("def f(a, *, key):\n    return a[key]\n", "assert f({(1, 2): {3}}, key=(1, 2)) == {3}"),
        ("def f(a, kind):\n    return [x for x in a if type(x) is kind]\n", "assert f((1, 'a', 2.0), str) == ['a']"),
        ("def f(n):\n    yield from range(n)\n", "assert list(f(3)) == [0, 1, 2] and tuple(f(2)) == (0, 1)"),
        ("from collections import Counter\ndef f(a):\n    return Counter(a)\n", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("from decimal import Decimal\ndef f():\n    return Decimal('0.1')\n", "assert str(f() * 3) == '0.3'"),
        (
            "def f():\n    return 2**5000, -0.0, float('inf'), 1j, '\\ud800'\n",
            "assert f()[0] == 2**5000 and str(f()[1:4]) == '(-0.0, inf, 1j)'",
        ),
        ("def f():\n    return float('nan')\n", "assert f() != f()"),
        (
            "def f(x):\n    raise ValueError(x)\n",
            "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False",
        ),
        ("import sys\ndef f(x):\n    return sys.getsizeof(x)\n", "assert f((1, 2)) == sys.getsizeof((1, 2))"),
        (
            "import re\ndef f(x):\n    return re.match('a', x)\n",
            "assert f('ab') and not f('b')\nassert f('ab').group() == 'a'",
        ),
        ("def f(n):\n    return lambda x: x + n\n", "assert f(1)(2) == 3"),
        ("calls = []\ndef f():\n    calls.append(1)\n    return len(calls)\n", "assert f() == 1 and f() == 2"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\ndef f(p):\n    return p.x\n",
            "assert f(P(3)) == 3 and P(4).x == 4",
        ),
        ("if __name__ == '__main__':\n    raise ValueError\ndef f():\n    return 1\n", "assert f() == 1"),
        ("import threading\ndef f():\n    t = threading.Thread(target=print)\n    t.start()\n    t.join()\n", "f()"),
    ],
)
def test_values_reach_the_tests_as_in_one_interpreter(source: str, tests: str) -> None:
    (result,) = run(Program("it", source, tests, ("f",)))
    assert result.passed, result


def test_numpy_can_be_used_and_its_scalars_are_numbers() -> None:
    pytest.importorskip("numpy")
    source = "import numpy as np\ndef f(a):\n    return np.sum(a), np.mean(a), np.any(a)\n"
    assert passes(source, "assert f([1, 2]) == (3, 1.5, True)", "f")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.fractions(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=8,
)


@given(plain | st.frozensets(st.integers()) | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False))
def test_plain_values_cross_unchanged(value: Any) -> None:
    def none_may(_: Any) -> int:
        raise AssertionError("exported an object")

    back = wire.decode(json.loads(json.dumps(wire.encode(value, none_may))), none_may)
    assert type(back) is type(value) and back == value


@pytest.mark.parametrize("data", [{}, ["eval", "1"], ["type", "eval"], ["module", "antigravity"], [], ["list", 3]])
def test_what_is_no_value_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="no value"):
        wire.decode(data, lambda number: number)


# ---- permission, canaries, warnings


def test_code_runs_only_if_allowed() -> None:
    with pytest.raises(ExecutionError, match=r"runs programs that a model wrote.*allow_code_execution=true"):
        run_programs([twice(RIGHT)])


def test_tests_that_are_no_python_are_the_datas_fault() -> None:
    with pytest.raises(ValueError, match="tests of program 'x' is no Python"):
        Program("x", RIGHT, "assert (", ("twice",))


def test_canaries() -> None:
    programs = [twice(RIGHT, str(i)) for i in range(4)]
    assert check_canaries(programs, allow_code_execution=True) == {"canonical": 1.0, "pass": 0.0, "half and half": 0.5}
    with pytest.raises(ExecutionError, match=r"canonical solutions score 0\.750, expected 1\.0; first broken: failed"):
        check_canaries([*programs[:3], twice("def twice(n):\n    return 0\n", "broken")], allow_code_execution=True)
    with pytest.raises(ExecutionError, match=r"pass solutions score 0\.500, expected 0\.0; first open: passed"):
        check_canaries([programs[0], Program("open", RIGHT, "pass", ())], allow_code_execution=True)
    with pytest.raises(ValueError, match="two programs or more, got 1"):
        check_canaries(programs[:1], allow_code_execution=True)


def test_without_bodies() -> None:
    assert (
        without_bodies("import math\ndef f(x):\n    '''Doc.'''\n    return x\n") == "import math\n\ndef f(x):\n    pass"
    )


def test_a_run_that_mostly_fails_on_syntax_or_names_is_suspicious() -> None:
    results = [Result(str(i), status == "passed", status, "") for i, status in enumerate(["syntax", "name", "passed"])]
    assert suspicion(results) == (
        "2 of 3 programs fail on syntax or unknown names: look at the extraction before the score"
    )
    assert suspicion(results[1:]) is None and suspicion([]) is None


def test_a_child_that_cannot_start_is_an_error_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CHILD", Path("/no/such/child.py"))
    with pytest.raises(ExecutionError, match="could not be set up: .*No such file"):
        run(twice(RIGHT))


# ---- isolation


def test_the_child_inherits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THIS_PROCESS", "1")
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    source = (
        "import os\n"
        "def environment():\n    return sorted(set(os.environ) - {'LC_CTYPE'})\n"
        "def directory():\n    return os.getcwd()\n"
        "def descriptors():\n"
        "    def is_open(d):\n"
        "        try:\n            return bool(os.fstat(d))\n"
        "        except OSError:\n            return False\n"
        "    return sum(map(is_open, range(3, 64)))\n"
        "def session():\n    return os.getppid()\n"
    )
    tests = (
        f"assert environment() == {sorted(execution.ENVIRONMENT)}\n"
        f"assert directory() != {os.getcwd()!r}\n"
        "assert descriptors() == 2\n"  # the two ends of the channel
        f"assert session() != {os.getpid()}\n"
    )
    (result,) = run(Program("it", source, tests, ("environment", "directory", "descriptors", "session")))
    os.close(reader)
    os.close(writer)
    assert result.passed, result


def test_the_record_says_what_is_in_force() -> None:
    weakest, record = isolation(()), isolation()
    assert weakest["layers"] == [] and weakest["network"] == "open"
    assert record["limits"]["CPU"] == 31 and record["verdict"] == weakest["verdict"]
    for layer in record["layers"]:
        assert isolation([layer])["layers"] == [layer]
    if "seccomp" in record["layers"]:
        assert record["network"] == record["files_written"] == "none"
        assert isolation(["seccomp"])["processes"] == "none can be started"


@pytest.mark.skipif(sys.platform != "linux", reason="system calls of Linux")
def test_the_table_of_system_calls_agrees_with_the_kernels_headers() -> None:
    machine = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    generic = Path("/usr/include/asm-generic/unistd.h")
    if not (machine.is_file() and generic.is_file() and platform.machine() == "x86_64"):
        pytest.skip("needs the kernel's headers for x86_64")
    x86 = dict(re.findall(r"#define __NR_(\w+) (\d+)", machine.read_text()))
    arm = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", generic.read_text()))
    arm["newfstatat"] = arm["fstatat"]
    rows = [entry.split() for entry in confinement.SYSTEM_CALLS.split(",")]
    for (_, _, *numbers), known in zip(confinement.ARCHITECTURES.values(), (x86, arm), strict=True):
        expected = [known[name] for name in ("clone", "openat", "fcntl", "prlimit64")]
        assert [str(number) for number in numbers] == expected
    for name, on_x86, on_arm in rows:
        assert on_x86 == x86[name] and on_arm in (arm.get(name), "-")


# ---- the hostile suite

SECTIONS = (Path(__file__).parent / "hostile.txt").read_text(encoding="utf-8").split("\n### ")[1:]
HOSTILE = {name: source for name, _, source in (section.partition("\n") for section in SECTIONS)}
FORGERIES = {name: source for name, source in HOSTILE.items() if name.startswith("forgery")}


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that anyone may read and write, with a correct solution in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "answers.py").write_text(RIGHT)
        (folder / "answers.py").chmod(0o666)
        yield folder


def test_the_hostile_suite(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if set(isolation()["layers"]) != set(confinement.LAYERS):
        pytest.skip("this kernel lacks a layer: what the suite tries would be done to this machine")
    monkeypatch.setenv("A_SECRET_OF_THIS_PROCESS", "1")
    server = socket.create_server(("127.0.0.1", 0))
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    datagrams.bind(server.getsockname())
    places = {"FOLDER": outside, "PORT": server.getsockname()[1], "PID": os.getpid()}
    memory = 2**29 + 4096 * (os.getpid() % 2**15)  # on the child's command line: tells ours from others'
    programs = []
    for name, source in HOSTILE.items():
        for place, value in places.items():
            source = source.replace(place, str(value))
        programs += [twice(source, name, timeout=0.5), twice(RIGHT, f"after {name}", timeout=8.0)]
    threads = threading.active_count()

    results = run(*programs, workers=4, memory_bytes=memory)

    assert len(HOSTILE) >= 25
    assert [result.id for result in results[::2] if result.passed] == []
    assert [result for result in results[1::2] if not result.passed] == []
    assert [path.name for path in outside.iterdir()] == ["answers.py"]
    assert (outside / "answers.py").read_text() == RIGHT
    server.setblocking(False)
    datagrams.setblocking(False)
    with server, datagrams:
        for receive in (server.accept, lambda: datagrams.recv(1)):
            with pytest.raises(BlockingIOError):
                receive()
    assert threading.active_count() == threads
    assert _wait_until(lambda: _with_text(memory) == [])  # killed, but the kernel may still be at it
    # what must run into a limit did, and nothing else took that long
    slow = {
        "endless loop",
        "endless import",
        "sleep",
        "signals ignored",
        "fork bomb",
        "thread bomb",
        "regular expression",
    }
    statuses = {result.id: result.status for result in results}
    assert {statuses[name] for name in slow} == {"timeout"}, collections.Counter(statuses.values())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_harness_leaves_nothing_behind() -> None:
    memory = 2**29 + 4096 * (os.getpid() % 2**15) + 2048
    sleeper = "import time\ntime.sleep(600)\n"
    script = (
        "from evaluation.execution import Program, run_programs\n"
        f"program = Program('it', {sleeper!r}, '', (), timeout=100)\n"
        f"run_programs([program], memory_bytes={memory}, allow_code_execution=True)\n"
    )
    harness = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    assert _wait_until(lambda: len(_with_text(memory)) == 3)  # the harness, the judge and the solution
    harness.kill()
    harness.wait()
    assert _wait_until(lambda: _with_text(memory) == [])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_harness_that_dies_while_its_child_starts_leaves_nothing_behind(monkeypatch) -> None:
    """The child is told of a harness that is not its parent: what it finds where the harness died before it was done
    confining itself.
    """
    memory = 2**29 + 4096 * (os.getpid() % 2**15) + 3072
    monkeypatch.setattr(os, "getpid", lambda: 2**30)
    (result,) = run(Program("it", "import time\ntime.sleep(600)\n", "", (), timeout=30), memory_bytes=memory)
    assert not result.passed and result.status != "timeout"
    assert _wait_until(lambda: _with_text(memory) == [])


def _wait_until(holds: Callable[[], bool]) -> bool:
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.05)
    return False


def _with_text(memory: int) -> list[Path]:
    """Processes with the number on their command line."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(memory) in _text(path)]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it ended meanwhile


def test_no_forgery_passes_where_the_kernel_allows_no_layer() -> None:
    programs = [twice(source, name, timeout=1.0) for name, source in FORGERIES.items()]
    results = run(*programs, twice(RIGHT, "right"), workers=4, layers=())
    assert [result.id for result in results if result.passed] == ["right"]


def test_a_stop_iteration_does_not_end_the_loop_of_the_tests() -> None:
    tests = "for value in map(f, [1, 2]):\n    assert value == 0\n"
    assert not passes("def f(x):\n    raise StopIteration\n", tests, "f")


def test_values_of_the_solution_cannot_absorb_arithmetic_or_membership() -> None:
    source = (
        "class A:\n    __sub__ = __abs__ = lambda *a: 0\n    __lt__ = __contains__ = lambda *a: True\n"
        "def f(x):\n    return A()\n"
    )
    assert not passes(source, "assert abs(f(1) - 2) < 1e-6", "f")
    assert not passes(source, "assert f(1) < 2", "f")
    assert not passes(source, "assert 3 in f(1)", "f")


# ---- the official items


@pytest.fixture(scope="module")
def official() -> list[Program]:
    path = SHARED / "data/humaneval/HumanEval.jsonl.gz"
    if not path.is_file():
        pytest.skip("needs ../shared/data/humaneval/HumanEval.jsonl.gz beside the checkout")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        docs = [json.loads(line) for line in lines]
    return [human_eval_program(doc, doc["prompt"] + doc["canonical_solution"]) for doc in docs]


def test_every_canonical_human_eval_solution_passes_with_many_workers(official: list[Program]) -> None:
    results = run(*official, workers=8)
    assert len(results) == 164
    assert [result for result in results if not result.passed] == []


def test_canaries_of_human_eval(official: list[Program]) -> None:
    check_canaries(official[::16], allow_code_execution=True)


def test_mbpp_items_with_quirks() -> None:
    path = SHARED / "data/mbpp/mbpp.jsonl"
    if not path.is_file():
        pytest.skip("needs ../shared/data/mbpp/mbpp.jsonl beside the checkout")
    docs = {doc["task_id"]: doc for doc in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    # a function named as a builtin, set-up code, types as arguments, a module of the solution, a class in the asserts
    quirks = [docs[i] for i in (126, 367, 533, 596, 601, 927)]
    right = run(*(mbpp_program(doc, doc["code"]) for doc in quirks))
    wrong = run(*(mbpp_program(doc, without_bodies(doc["code"])) for doc in quirks))
    assert all(result.passed for result in right) and not any(result.passed for result in wrong)
