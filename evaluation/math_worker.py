"""The process that judges MATH answers: a line of JSON in, a line of JSON out, by math-verify.

Run by `grading.py`, by path, in a process of its own: sympy may take for ever or all memory over a power tower, and
neither can be stopped from inside Python. The system's alarm ends this process then, and another takes its place. The
alarm counts processor time, so that a busy machine makes no answer wrong.
"""

import json
import logging
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any

MEMORY = 4 << 30  # bytes of address space


def main(seconds: float) -> None:
    try:
        from math_verify import parse, verify
    except ImportError as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return
    logging.disable(logging.WARNING)  # math-verify warns of its time limits being off: this process has its own
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(json.dumps({"ready": True}), flush=True)

    def read(answer: str) -> list[Any]:
        return list(parse(f"${answer}$", parsing_timeout=None, raise_on_error=False))

    def judge(gold: str, answer: str) -> dict[str, Any]:
        expected, given = read(gold), read(answer)
        if not expected:
            return {"error": f"the gold answer {gold!r} cannot be parsed"}
        scale = (
            {} if all(map(ordinary, numbers([*expected, *given]))) else {"float_rounding": 60, "numeric_precision": 80}
        )
        return {"correct": bool(verify(expected, given, timeout_seconds=None, **scale)), "parsed": bool(given)}

    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # nothing handles it: the alarm ends the process, C code or not
        try:
            verdict = judge(**json.loads(line))
        except Exception as error:  # sympy raises all sorts over odd input; the note says which
            verdict = {"correct": False, "parsed": True, "note": f"{type(error).__name__} while comparing"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


def numbers(parsed: list[Any]) -> Iterator[Any]:
    """The numbers that a parsed answer is made of, as a tuple or a set holds them."""
    for value in parsed:
        if getattr(value, "is_number", False):
            yield value
        elif hasattr(value, "args"):
            yield from numbers(list(value.args))


def ordinary(number: Any) -> bool:
    """Whether math-verify's own precision can tell it from its neighbours: it compares 15 digits, 6 of them decimals.

    By that, 1/2^97 would be 1/2^96. Numbers below a thousandth or above a milliard are compared at 80 digits.
    """
    size = abs(number.evalf(15))
    return bool(size == 0 or (size > 1e-3 and size < 1e9)) if size.is_comparable else True


if __name__ == "__main__":
    main(float(sys.argv[1]))
