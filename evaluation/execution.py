"""Judging code that a model wrote: human-eval's programs and pass rule, run where it can do little harm.

For each program a child process is started with no environment, descriptors or directory of this one, in a session of
its own; `evaluation/sandbox` says how it reaches a verdict that the judged code cannot forge and what is taken from it,
`docs/security.md` what remains possible. Needs neither torch nor lm-eval.

A program passes if the tests ran to their end: only then does the child write a secret, drawn for this one program.
"""

import ast
import builtins
import hmac
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluation.sandbox.confinement import LAYERS

CHILD = Path(__file__).with_name("sandbox") / "child.py"
WALL = 4
"""Limits are in processor time, so that a busy machine fails nobody; a sleeper is ended at this many times that."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
"""All that a child sees: sets iterate alike at every rescoring, and numpy starts no threads."""


class ExecutionError(RuntimeError):
    """Code may not, or cannot, be judged here: an error of the set-up, never a verdict."""


@dataclass(frozen=True)
class Program:
    """One solution and the tests it has to survive.

    `source` is the model's and trusted in nothing; the rest is the benchmark's. `setup` runs right after `source`, in
    the same module; `context` runs before `tests`, apart from the solution, for the helpers that the tests use.
    `entry_points` are the names that tests take from the solution even where a builtin or `context` has them too.
    `timeout`: seconds of processor time, None for the run's.
    """

    id: str
    source: str
    tests: str
    entry_points: tuple[str, ...]
    context: str = ""
    setup: str = ""
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("tests", "context", "setup"):
            try:
                ast.parse(getattr(self, name))
            except SyntaxError as error:
                raise ValueError(f"{name} of program {self.id!r} is no Python: {error}; is the data intact?") from None


@dataclass(frozen=True)
class Result:
    """A verdict. `status`: passed, failed (an assert), error (an exception), syntax, name (an unknown name), timeout,
    memory, ended (the process is gone). `detail`: one line for people."""

    id: str
    passed: bool
    status: str
    detail: str


def human_eval_program(doc: Mapping[str, Any], source: str, id: str | None = None) -> Program:
    """A HumanEval item (or one of its schema) with `source`, the whole program that the answer amounts to."""
    entry = doc["entry_point"]
    # the prompt is a function without a body but for its docstring, and a program with one
    return Program(
        id or str(doc["task_id"]), source, f"{doc['test']}\ncheck({entry})\n", (entry,), f"{doc['prompt']}    pass\n"
    )


def mbpp_program(doc: Mapping[str, Any], source: str, id: str | None = None) -> Program:
    """An MBPP item with `source`: its listed asserts and set-up code; what they call is what the reference defines."""
    tests = "\n".join(doc["test_list"]) + "\n"
    defined = {node.name for node in ast.parse(doc["code"]).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
    entries = tuple(sorted(defined & used)) or tuple(sorted(used - vars(builtins).keys()))
    return Program(id or str(doc["task_id"]), source, tests, entries, setup=doc.get("test_setup_code") or "")


def run_programs(
    programs: Sequence[Program],
    *,
    workers: int = 2,
    timeout: float = 3.0,
    memory_bytes: int = 2**30,
    layers: Sequence[str] = LAYERS,
    allow_code_execution: bool = False,
) -> list[Result]:
    """Judges `programs`, `workers` at a time; the results are in their order.

    `timeout`: seconds of processor time a solution may use; it is ended at WALL times that in any case.
    `memory_bytes`: address space of its process. `layers`: which of the kernel's fences to try (`isolation()` tells
    which took effect). Raises ExecutionError unless allowed, or where the child cannot be set up.
    """
    if not allow_code_execution:
        raise ExecutionError(
            "judging this benchmark runs programs that a model wrote, on this machine, fenced in as docs/security.md "
            "describes; allow_code_execution=true allows it"
        )
    if os.name != "posix":
        raise ExecutionError(f"code can be judged on Linux and macOS alone, not on {sys.platform}")
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_judge, program, timeout, memory_bytes, layers) for program in programs]
        try:
            reports = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [
        Result(program.id, report["passed"], report["status"], report["detail"])
        for program, report in zip(programs, reports, strict=True)
    ]


def _judge(program: Program, timeout: float, memory_bytes: int, layers: Sequence[str]) -> dict[str, Any]:
    """What the child reports of `program`: `isolation`, `status`, `detail`, and `passed` if it gave back the secret."""
    timeout = program.timeout or timeout
    settings = {
        "layers": list(layers),
        "packages": sysconfig.get_path("purelib"),
        "cpu_seconds": math.ceil(timeout) + 1,  # for what the clock misses: it comes first, also where it is late
        "memory_bytes": memory_bytes,
        "harness": os.getpid(),
    }
    secret = secrets.token_hex(32)
    job = {name: getattr(program, name) for name in ("source", "tests", "entry_points", "context", "setup")}
    with tempfile.TemporaryDirectory() as directory:
        child = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", str(CHILD), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd=directory,
            start_new_session=True,
        )
        late = threading.Event()

        def too_late() -> None:
            late.set()
            _end_group(child)

        timer = threading.Timer(WALL * timeout, too_late)
        timer.start()
        try:
            answer, complaint = _converse(child, json.dumps(job | {"secret": secret}).encode())
        finally:
            timer.cancel()
            timer.join()
            _end_group(child)
            code = child.wait()
    # first what took effect, then, if the judge came to one, its verdict
    first, _, second = answer.partition(b"\n")
    if late.is_set():
        verdict = {"status": "timeout", "detail": f"more than {WALL * timeout:g} s of wall time"}
    elif second:
        verdict = json.loads(second)
    elif not first:
        lines = complaint.decode(errors="replace").strip().splitlines() or [f"exit status {code}"]
        raise ExecutionError(f"the child process that judges code could not be set up: {lines[-1]}")
    elif code == -signal.SIGKILL:
        verdict = {"status": "timeout", "detail": f"the tests took more than {2 * math.ceil(timeout)} s"}
    else:
        verdict = {"status": "ended", "detail": f"the tests' process ended with status {code}"}
    passed = hmac.compare_digest(str(verdict.get("secret")), secret)
    return verdict | {"passed": passed, "isolation": json.loads(first or b"{}")}


def _converse(child: subprocess.Popen[bytes], job: bytes) -> tuple[bytes, bytes]:
    assert child.stdin and child.stdout and child.stderr
    with suppress(BrokenPipeError), child.stdin:
        child.stdin.write(job)
    with child.stdout, child.stderr:
        return child.stdout.read(), child.stderr.read()


def _end_group(child: subprocess.Popen[bytes]) -> None:
    # Only ever called before the child is waited for: until then its number, and its group's, is no other's.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def isolation(layers: Sequence[str] = LAYERS) -> dict[str, Any]:
    """What stands between judged code and this machine, found by starting a child: for `scores.json`."""
    program = Program("isolation", "def one():\n    return 1\n", "assert one() == 1\n", ("one",))
    report = _judge(program, timeout=30.0, memory_bytes=2**30, layers=layers)
    if not report["passed"]:
        raise ExecutionError(f"a correct program fails in the child process: {report['detail']}")
    found = report["isolation"]
    closed = found["seccomp"] or found["namespaces"]
    user = "nobody" if found["nobody"] else "this user"
    return {
        "layers": [layer for layer in LAYERS if found[layer]],
        "verdict": "tests run in a process that the judged code cannot reach",
        "user": user,
        "network": "none" if closed else "open",
        "processes": "none can be started" if found["seccomp"] or "NPROC" in found["limits"] else "not limited",
        "signals": "to itself alone" if closed else f"to every process of {user}",
        "files_read": "Python's, numpy's and the system's libraries" if found["landlock"] else f"what {user} may read",
        "files_written": "none" if found["seccomp"] or found["landlock"] else f"what {user} may write, 1 MiB each",
        "limits": found["limits"],
    }


def check_canaries(
    programs: Sequence[Program],
    *,
    workers: int = 2,
    layers: Sequence[str] = LAYERS,
    allow_code_execution: bool = False,
) -> dict[str, float]:
    """Judges solutions known to be right, then the same with `pass` for bodies, then half and half.

    Returns the three rates; ExecutionError unless they are 1, 0 and 1/2: no score of this machine can be trusted then.
    `programs`: the benchmark's own solutions, an even number of them or the last is left out.
    """
    right = list(programs[: len(programs) // 2 * 2])
    if not right:
        raise ValueError(f"canaries need two programs or more, got {len(programs)}")
    wrong = [replace(program, source=without_bodies(program.source)) for program in right]
    mixed = [(right, wrong)[i % 2][i] for i in range(len(right))]
    rates = {}
    for name, sources, expected in (("canonical", right, 1.0), ("pass", wrong, 0.0), ("half and half", mixed, 0.5)):
        results = run_programs(sources, workers=workers, layers=layers, allow_code_execution=allow_code_execution)
        rates[name] = sum(result.passed for result in results) / len(results)
        odd = [r for r, program in zip(results, sources, strict=True) if r.passed != (program in right)]
        if odd:
            raise ExecutionError(
                f"canaries: {name} solutions score {rates[name]:.3f}, expected {expected}; first {odd[0].id}: "
                f"{odd[0].status} {odd[0].detail}. No code score of this machine can be trusted"
            )
    return rates


def without_bodies(source: str) -> str:
    """`source` with `pass` in place of every function's body."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def suspicion(results: Sequence[Result]) -> str | None:
    """A warning for the record where most samples are not even programs: the extraction is more likely at fault."""
    broken = sum(result.status in ("syntax", "name") for result in results)
    if 2 * broken <= len(results):
        return None
    return (
        f"{broken} of {len(results)} programs fail on syntax or unknown names: look at the extraction before the score"
    )
