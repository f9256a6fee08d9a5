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
    text = re.sub("[\u2212\u2013]", "-", text.replace("\\!", ""))
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))", ",", text)
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


STATED = re.compile(r"the answer is[\s:*_`\"'$]*+(?=(\S[^\n]*))", re.IGNORECASE)  # ahead: a line may say it twice
OPTION = re.compile(r"\(([A-Z])\)")


def stated_answer(text: str) -> str | None:
    """What the last "the answer is" says: an option as "(B)", else the words up to the sentence's end. None if nothing.

    A full stop ends the sentence only before a space or the line's end, so that 3.5 stays whole.
    """
    stated = STATED.findall(text)
    if not stated:
        return None
    said = re.sub(r"\\(?:boxed|text)\s*\{(.*?)\}", r"\1", stated[-1])
    if option := OPTION.match(said):
        return f"({option[1]})"
    said = re.split(r"[.!](?=[\s*_`\"'$]*(?:\s|$))", said, maxsplit=1)[0]
    return said.strip(" \t.*_`\"'$") or None


def answer_like(text: str, gold: str, which: int = -1) -> str | None:
    """The last thing in `text` (or the one numbered `which`) that has the form of `gold`, None if there is none.

    Forms are an option, a word of a fixed pair, a number, or else a line.
    """
    if OPTION.fullmatch(gold):
        found = [f"({letter})" for letter in OPTION.findall(text)]
    elif re.fullmatch(r"-?\d+(\.\d+)?", gold):
        return last_number(text)
    elif pair := next((pair for pair in ANSWER_PAIRS if gold.lower() in pair), None):
        found = re.findall(rf"\b(?:{'|'.join(pair)})\b", text.lower())
    else:
        found = [line.strip() for line in text.splitlines() if line.strip()]
    return found[which] if found else None


ANSWER_PAIRS = (("yes", "no"), ("true", "false"), ("valid", "invalid"))


def same_words(left: str | None, right: str) -> bool:
    """Equal but for case, spacing, a final stop and the brackets of an option; numbers by value."""
    if left is None:
        return False
    left, right = (" ".join(side.lower().strip().rstrip(".").split()) for side in (left, right))
    bare = [re.sub(r"^\(?([a-z])\)?$", r"\1", side) for side in (left, right)]
    if bare[0] == bare[1]:
        return True
    numbers = [last_number(side) if re.fullmatch(NUMBER, side) else None for side in (left, right)]
    return same_number(*numbers)


FINAL = re.compile(r"\bfinal answer(?: is|\*{0,2}:)(?!\W*the final)[\s:*]*+(?=(\S[^\n]*))", re.IGNORECASE)
BOLD = re.compile(r"\*\*(.+?)\*\*")
BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(\w))")
DISPLAY = re.compile(r"(?<!\\)\\\[\s*(.*?)\s*\\\]|(?<!\\)\\\((.*?)\\\)|\$\$\s*(.*?)\s*\$\$", re.DOTALL)


def math_answer(text: str) -> str | None:
    """MATH's answer: the last box or the last "final answer", whichever comes later. None if there is no answer.

    Without either: what follows the last "the answer is", else the last bold span, else the text itself if it is
    nothing but one expression on one line. A box that the text's end cuts off is no answer, nor part of one.
    """
    text = DISPLAY.sub(lambda shown: f"${shown[1] or shown[2] or shown[3]}$", text)
    opened = _last(BOX, text)
    if opened and _boxed(text, opened) is None:
        text = text[: opened.start()]
    box, final = last_box(text), _last(FINAL, text)
    if box and (final is None or box[0] > final.start()):
        return box[1]
    if said := final or _last(STATED, text) or _last(BOLD, text):
        return expression(said[1])
    line = text.strip()
    prose = re.search(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", "", line))
    return None if "\n" in line or prose else expression(line)


def last_box(text: str) -> tuple[int, str] | None:
    """Start and content of the last box whose braces close, nested braces kept."""
    for match in reversed(list(BOX.finditer(text))):
        if (content := _boxed(text, match)) is not None:
            return match.start(), expression(content) or ""
    return None


def _boxed(text: str, opening: re.Match[str]) -> str | None:
    if opening[1]:
        return opening[1]
    depth = 1
    for at in range(opening.end(), len(text)):
        if text[at - 1] != "\\":
            depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[opening.end() : at]
    return None


def expression(said: str) -> str | None:
    """The expression that a sentence begins with, without what sets it off: dollars, stars, a full stop."""
    said = re.split(r"\.\s|\.?\s*I hope", said.replace("\\$", ""), maxsplit=1)[0]
    spans = re.findall(r"\$(.+?)\$", said)
    said = spans[0] if len(spans) == 1 else said
    return said.replace("$", "").strip(" \t\n*`:").rstrip(". ") or None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = list(pattern.finditer(text))
    return matches[-1] if matches else None


def plain_math(answer: str) -> str:
    """`answer` in one spelling, for exact match: no spaces, dollars, text commands, sizes, degrees, thousands."""
    answer = re.sub(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}", r"\1", answer)
    answer = re.sub(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;:\s]|\^\{?\\circ\}?|\\?[$%]|[\s*]", "", answer)
    answer = re.sub(r"\\[dt]frac", r"\\frac", answer)
    answer = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", answer)
    answer = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", answer)
    return (answer.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+", answer) else answer).strip(".")
