"""Judging MATH answers by math-verify, in a worker process that may be lost.

The time limit is the worker's own alarm, so it holds in any thread of any caller; math-verify's limit needs the main
thread. A worker that ran out of time or memory is replaced, and the answer that did it counts as wrong with a note.
"""

import atexit
import functools
import json
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 10.0  # of processor time, a comparison
WORKER = Path(__file__).with_name("math_worker.py")


class GraderUnavailableError(RuntimeError):
    """math-verify cannot be used here, so that no answer can be called right or wrong."""


@dataclass(frozen=True)
class Grade:
    """Whether the answer equals the gold answer, and why it could not be told if so."""

    correct: bool
    note: str | None = None


class MathGrader:
    """math-verify behind a pipe. Safe to share between threads; comparisons take turns."""

    def __init__(self, seconds: float = SECONDS, worker: Path = WORKER) -> None:
        self._command = [sys.executable, str(worker), str(seconds)]
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def grade(self, gold: str, answer: str) -> Grade:
        """Whether `answer` is mathematically `gold`; both as LaTeX without dollars.

        The order matters: math-verify lets an interval stand for a gold inequality, not the other way round.

        Raises:
            GraderUnavailableError: math-verify cannot be imported.
            ValueError: the gold answer cannot be parsed.
        """
        with self._lock:
            reply = self._ask({"gold": gold, "answer": answer})
        if "error" in reply:
            raise ValueError(reply["error"])
        return Grade(reply["correct"], reply.get("note") or (None if reply["parsed"] else "not an expression"))

    def close(self) -> None:
        """Ends the worker; the next comparison starts another."""
        if self._process:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _ask(self, question: dict[str, str]) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        if line := process.stdout.readline():
            return dict(json.loads(line))
        ended = process.wait()
        self.close()
        late = ended == -signal.SIGPROF
        note = (
            f"no verdict within {self._seconds:g} s of processor time"
            if late
            else f"the comparison ended its process (status {ended})"
        )
        return {"correct": False, "parsed": True, "note": note}

    def _start(self) -> subprocess.Popen[str]:
        self._process = process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout
        hello = json.loads(process.stdout.readline() or '{"unavailable": "its process ended at once"}')
        if "ready" not in hello:
            self.close()
            raise GraderUnavailableError(
                f"math-verify cannot be used ({hello['unavailable']}); install math-verify[antlr4_9_3]"
            )
        return process


@functools.cache
def math_grader() -> MathGrader:
    """The one grader of this process."""
    grader = MathGrader()
    atexit.register(grader.close)
    return grader
