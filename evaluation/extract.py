"""From a canvas's text to the answer in it: pure functions, no state, no model, no grader.

Diffusion LMs fill the whole canvas before anybody can stop them, so stop strings do not stop generation here: they cut
the text when it is scored (as the public harnesses for LLaDA and Dream do). `cut` is that cut, and the strings are
part of each benchmark's scorer.
"""

import re
from collections.abc import Iterable
from decimal import Decimal

END_TOKENS = ("<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|im_end|>", "</s>")


def cut(text: str, until: Iterable[str]) -> str:
    """`text` up to the first of the stop strings or end tokens, line ends as LF."""
    text = text.replace("\r\n", "\n")
    ends = [at for stop in (*until, *END_TOKENS) if (at := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]


# A minus is a sign only where no operand stands before it: "10-7" holds 10 and 7, "is -7" and "-$7" hold -7.
NUMBER = r"(?:(?<![\w)\]}%])-)?(?:\\?[$€£])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
DECORATION = r"(?:\\boxed\s*\{|\\text\s*\{|\\[(\[]|[*$_`({\s:])*"  # what may stand between a marker and its answer


def _numbers(pattern: str, text: str) -> str | None:
    """The last match of `pattern` (its group `n`, a NUMBER) as plain digits with sign and point."""
    text = text.replace("{,}", ",").replace("\\,", ",").replace("\\!", "").replace("\u2212", "-")
    found = [match["n"] for match in re.finditer(pattern, text, re.IGNORECASE)]
    return re.sub(r"[\\$€£,]", "", found[-1]) if found else None


def last_number(text: str) -> str | None:
    """The last number anywhere: the flexible rule. None if there is none."""
    return _numbers(f"(?P<n>{NUMBER})", text)


def marked_number(text: str) -> str | None:
    """The number after the last `####` that has one: GSM8K's strict rule."""
    return _numbers(rf"####{DECORATION}(?P<n>{NUMBER})", text)


def stated_number(text: str) -> str | None:
    """The number after the last "the answer is" that has one: the strict rule of the chain-of-thought prompt."""
    return _numbers(rf"the answer is{DECORATION}(?P<n>{NUMBER})", text)


def same_number(left: str | None, right: str | None) -> bool:
    """Equal as numbers, so that 46.00 is 46; None equals nothing."""
    return left is not None and right is not None and Decimal(left) == Decimal(right)
