"""The program that `evaluation/execution.py` starts once per solution: the judge, and the solution's process."""

import builtins
import json
import operator
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

sys.path.append(str(Path(__file__).resolve().parents[2]))  # started as a file, by a Python that knows no packages
from evaluation.sandbox.confinement import confine, enter_namespaces
from evaluation.sandbox.wire import decode, encode, receive, send

sys.path.pop()


# ---- the solution's process


def serve(requests: BinaryIO, replies: BinaryIO) -> NoReturn:
    """Does what the judge asks until the judge is gone. Nothing that this process sends is trusted."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    names, objects = vars(module), {}
    operations: dict[str, Callable[..., Any]] = {
        "run": lambda source: exec(compile(source, "<solution>", "exec"), names),
        "names": lambda wanted: {name: names[name] for name in wanted if name in names},
        "call": lambda function, *args, **kwargs: function(*args, **kwargs),
        "attribute": getattr,
        "item": operator.getitem,
        "length": len,
        "truth": bool,
        "iterate": iter,
        "next": next,
    }

    def export(value: Any) -> int:
        objects[id(value)] = value  # kept alive, so that its number stays its own
        return id(value)

    while True:
        try:
            number, operation, args, kwargs = receive(requests)
        except EOFError:
            os._exit(0)
        try:
            values = [decode(value, objects.__getitem__) for value in args]
            named = {name: decode(value, objects.__getitem__) for name, value in kwargs.items()}
            result = encode(operations[operation](*values, **named), export)
            after = [encode(value, export) for value in values]
            changed = [[i, new] for i, (old, new) in enumerate(zip(args, after, strict=True)) if old != new]
            reply = [number, "value", result, changed]
        except BaseException as error:
            reply = [number, "raise", type(error).__name__, str(error)[:300]]
        send(replies, reply)


# ---- the judge


class SolutionError(Exception):
    """An exception of the solution that has no counterpart to be raised here; `kind` is its type's name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Solution:
    """The judge's end of the channel."""

    def __init__(self, pid: int, requests: BinaryIO, replies: BinaryIO) -> None:
        self.pid, self.requests, self.replies, self.number = pid, requests, replies, 0

    def ask(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """The result of `operation` over there, or its exception. Arguments it changed in place are changed here."""
        self.number += 1
        values = [encode(value, self._refuse) for value in args]
        named = {name: encode(value, self._refuse) for name, value in kwargs.items()}
        try:
            send(self.requests, [self.number, operation, values, named])
            reply = receive(self.replies)
        except (EOFError, BrokenPipeError):
            raise EOFError from None
        match reply:
            case [self.number, "value", result, list(changed)]:
                for i, value in changed:
                    _overwrite(args[i], decode(value, self._stand_in))
                return decode(result, self._stand_in)
            case [self.number, "raise", str(kind), str(text)]:
                known = getattr(builtins, kind, None)
                # StopIteration would end a loop of the tests quietly, and the asserts in it would never run
                if isinstance(known, type) and issubclass(known, Exception) and not kind.startswith("Stop"):
                    raise known(text)
                raise SolutionError(kind, text)
        raise ValueError("the solution's process did not keep to the protocol")

    def _stand_in(self, number: int) -> "StandIn":
        return StandIn(self, number)

    def _refuse(self, value: Any) -> int:
        if isinstance(value, StandIn):
            return value._number
        raise TypeError(f"the tests hand a {type(value).__name__} to the solution; only plain data can cross")


class StandIn:
    """An object of the solution's process, used from the judge. Never equal to a value, so it cannot feign a result."""

    def __init__(self, solution: Solution, number: int) -> None:
        self._solution, self._number = solution, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._solution.ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._solution.ask("attribute", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self._solution.ask("item", self, key)

    def __len__(self) -> int:
        return self._solution.ask("length", self)

    def __bool__(self) -> bool:
        return self._solution.ask("truth", self) is True

    def __iter__(self) -> Iterator[Any]:
        iterator = self._solution.ask("iterate", self)
        while True:
            try:
                yield self._solution.ask("next", iterator)
            except SolutionError as error:
                if error.kind != "StopIteration":
                    raise
                return

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)


def _overwrite(target: Any, value: Any) -> None:
    if isinstance(target, list) and isinstance(value, list):
        target[:] = value
    elif isinstance(target, dict | set) and isinstance(value, type(target)):
        target.clear()
        target.update(value)


def run_tests(job: dict[str, Any], solution: Solution) -> None:
    """The benchmark's program: the solution, the set-up code, the tests. Returns only after the last assert."""
    solution.ask("run", job["source"])
    solution.ask("run", job["setup"])
    names: dict[str, Any] = {"__name__": "tests"}
    exec(compile(job["context"], "<context>", "exec"), names)
    for entry in job["entry_points"]:
        names.pop(entry, None)
    tests = compile(job["tests"], "<tests>", "exec")
    wanted = (_names(tests) - names.keys() - vars(builtins).keys()) | set(job["entry_points"])
    bound = solution.ask("names", sorted(wanted))
    names |= {name: bound[name] for name in wanted if name in bound}
    exec(tests, names)


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


# ---- what the judge tells the harness

STATUS = {
    "AssertionError": "failed",
    "SyntaxError": "syntax",
    "IndentationError": "syntax",
    "TabError": "syntax",
    "NameError": "name",
    "MemoryError": "memory",
    "SystemExit": "ended",
}


def judge(job: dict[str, Any], solution: Solution, cpu_seconds: int) -> dict[str, Any]:
    """The verdict: a status, one line of detail, and the secret if the tests ran to their end."""
    try:
        run_tests(job, solution)
    except EOFError:
        status, detail = _end(solution.pid, cpu_seconds)
        return {"status": status, "detail": detail}
    except Exception as error:
        kind = error.kind if isinstance(error, SolutionError) else type(error).__name__
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<tests>"]
        parts = [kind, str(error)]
        parts += [f"in `{job['tests'].splitlines()[line - 1].strip()}`" for line in lines[-1:] if line]
        line = ": ".join(filter(None, parts))[:500]
        # the text may be the solution's: no line ends, no terminal escapes
        detail = "".join(character if character.isprintable() else " " for character in line)
        return {"status": STATUS.get(kind, "error"), "detail": detail}
    return {"status": "passed", "detail": "", "secret": job["secret"]}


def _end(pid: int, cpu_seconds: int) -> tuple[str, str]:
    """Why the solution's process no longer answers."""
    code, processor_seconds = _wait(pid, 1.0)
    if code is None:
        return "ended", "the solution closed its end of the channel"
    if os.WIFEXITED(code):
        return "ended", f"the solution ended its process with exit status {os.WEXITSTATUS(code)}"
    if processor_seconds > cpu_seconds - 0.1:
        return "timeout", f"more than {cpu_seconds} s of processor time"
    return "ended", f"the solution's process was ended by signal {os.WTERMSIG(code)}"


def _wait(pid: int, seconds: float) -> tuple[int | None, float]:
    """How the child `pid` ended and the processor time it took; None and 0 if it still runs after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, code, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return code, usage.ru_utime + usage.ru_stime
        time.sleep(0.002)
    return None, 0.0


def main() -> None:
    settings = json.loads(sys.argv[1])
    layers, packages, memory = settings["layers"], settings["packages"], settings["memory_bytes"]
    namespaces = enter_namespaces(layers)
    request_end, requests = os.pipe()
    replies, reply_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        for descriptor in (nowhere, requests, replies):
            os.close(descriptor)
        sys.path.append(packages)
        to_judge = os.fdopen(reply_end, "wb")
        send(to_judge, confine(layers, packages, settings["cpu_seconds"], memory))
        serve(os.fdopen(request_end, "rb"), to_judge)
    os.close(request_end)
    os.close(reply_end)
    solution = Solution(pid, os.fdopen(requests, "wb"), os.fdopen(replies, "rb"))
    isolation = {"namespaces": namespaces} | receive(solution.replies)
    verdicts = os.fdopen(os.dup(1), "w")
    print(json.dumps(isolation), file=verdicts, flush=True)
    job = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the tests print
    confine(layers, packages, 2 * settings["cpu_seconds"], memory)
    if os.getppid() != settings["harness"]:
        os._exit(1)  # it died before the kernel was asked to tell, and nobody would end this process or the solution's
    print(json.dumps(judge(job, solution, settings["cpu_seconds"])), file=verdicts, flush=True)
    verdicts.close()
    with suppress(OSError):  # leave no zombie to a container without an init process; the harness kills what stays
        solution.requests.close()
        _wait(pid, 0.2)
    os._exit(0)  # no destructors: stand-ins may still be alive


if __name__ == "__main__":
    main()
