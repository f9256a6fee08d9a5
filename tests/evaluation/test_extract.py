"""Extraction, a table of cases for each function (CASES S1, S2, S3)."""

import pytest

from evaluation import extract

LAST_NUMBER = [
    ("comes to $46.00.", "46"),
    ("1,250 beads", "1250"),
    ("9{,}500", "9500"),
    (r"about 9\,500 m", "9500"),
    ("So 72 clips, in total ...", "72"),
    ("Total is -7", "-7"),
    ("Total is \u22127", "-7"),  # a typographic minus
    ("Total is \u20137", "-7"),
    ("pages 5\u20137", "7"),
    ("9\u202f500 litres", "9500"),
    ("in 2\u00a0500 g bags", "2500"),
    ("of 12\u00a07", "7"),
    (r"9,\!500", "9500"),
    (r"3\,5", "5"),
    ("a loss of -$7", "-7"),
    ("a loss of $-7", "-7"),
    ("x=-7", "-7"),
    ("so 10-7", "7"),  # a difference, not a negative number
    ("(3)-7", "7"),
    ("12 left, of 40", "40"),
    ("3, 4", "4"),
    ("1,2345", "2345"),  # not groups of three
    ("2,125.50 dollars", "2125.5"),
    ("at .5 of it", "0.5"),
    (r"\boxed{46}", "46"),
    ("**46**", "46"),
    (r"\$46", "46"),
    ("70%", "70"),
    ("7 . 8.", "8"),
    ("... . ,", None),
    ("none", None),
    ("", None),
]


@pytest.mark.parametrize("text, number", LAST_NUMBER)
def test_last_number(text: str, number: str | None) -> None:
    found = extract.last_number(text)
    assert found == number or extract.same_number(found, number)


MARKED_NUMBER = [
    ("#### 9 and then #### 42", "42"),
    ("####42", "42"),
    ("#### $1,250.", "1250"),
    ("#### -7", "-7"),
    (r"#### \boxed{5}", "5"),
    ("#### **5**", "5"),
    ("#### 12 of 40", "12"),
    ("#### 9\n#### ", "9"),  # a marker with nothing behind it is not an answer
    ("The answer is 42", None),
    ("#### about 42", None),
    ("", None),
]


@pytest.mark.parametrize("text, number", MARKED_NUMBER)
def test_marked_number(text: str, number: str | None) -> None:
    assert extract.marked_number(text) == number


STATED_NUMBER = [
    ("5 + 4 = 9. The answer is 9.", "9"),
    ("The answer is 8. No: the answer is $1,250.00.", "1250.00"),
    ("So the answer is: **-7**", "-7"),
    (r"the answer is \(46\)", "46"),
    ("The answer is\n46", "46"),
    ("The answer is unknown. 9", None),
    ("#### 9", None),
    ("", None),
]


@pytest.mark.parametrize("text, number", STATED_NUMBER)
def test_stated_number(text: str, number: str | None) -> None:
    assert extract.stated_number(text) == number


def test_numbers_are_compared_by_value() -> None:
    assert extract.same_number("46.00", "46")
    assert not extract.same_number("46.01", "46")
    assert not extract.same_number(None, "46")


CUTS = [
    ("one Question: two", "one "),
    ("one<|eot_id|>two", "one"),
    ("one<|im_end|> Question: two", "one"),
    ("Question: one", ""),
    ("one\r\ntwo", "one\ntwo"),
    ("one", "one"),
]


@pytest.mark.parametrize("text, kept", CUTS)
def test_cut(text: str, kept: str) -> None:
    assert extract.cut(text, ("Question:",)) == kept


STATED_ANSWER = [
    ("So the answer is (B). ", "(B)"),
    ("So the answer is (B)", "(B)"),
    ("So the answer is **(B)**.", "(B)"),
    ("the answer is (B) 12/14/2026", "(B)"),
    ("So the answer is (B) because (A) is wrong.", "(B)"),
    ("the answer is True. So the answer is False.", "False"),
    ("So the answer is 3.5.", "3.5"),
    ("So the answer is -12. Good.", "-12"),
    ("So the answer is Yes. I am sure.", "Yes"),
    ("So the answer is Yes!", "Yes"),
    ("So the answer is: valid", "valid"),
    ("So the answer is\nNo.", "No"),
    ("The answer is No", "No"),
    ("So the answer is ] ) >.", "] ) >"),
    ("So the answer is } ]", "} ]"),
    (r"So the answer is \boxed{(C)}.", "(C)"),
    ("So the answer is Monsters, Inc.", "Monsters, Inc"),
    ("So the answer is arm it&t zoo.", "arm it&t zoo"),
    ("The Queen moves. (B)", None),
    ("the answer is", None),
    ("", None),
]


@pytest.mark.parametrize("text, answer", STATED_ANSWER)
def test_stated_answer(text: str, answer: str | None) -> None:
    """S2."""
    assert extract.stated_answer(text) == answer


ANSWER_LIKE = [
    ("It is (A), no, (C) it is.", "(B)", "(C)"),
    ("yes, or rather No.", "Yes", "no"),
    ("It is invalid.", "valid", "invalid"),
    ("7 and 12 apples", "5", "12"),
    ("sorted:\narm zoo\n", "a b", "arm zoo"),
    ("nothing of the kind", "(A)", None),
    ("", "a b", None),
]


@pytest.mark.parametrize("text, gold, answer", ANSWER_LIKE)
def test_answer_like(text: str, gold: str, answer: str | None) -> None:
    assert extract.answer_like(text, gold) == answer


SAME_WORDS = [
    ("(B)", "(B)", True),
    ("B", "(B)", True),
    ("b.", "(B)", True),
    ("(C)", "(B)", False),
    ("YES", "Yes", True),
    ("3.0", "3", True),
    ("arm  zoo", "arm zoo", True),
    ("zoo arm", "arm zoo", False),
    ("invalid", "valid", False),
    (None, "valid", False),
]


@pytest.mark.parametrize("left, right, same", SAME_WORDS)
def test_same_words(left: str | None, right: str, same: bool) -> None:
    assert extract.same_words(left, right) is same


MATH_ANSWER = [
    (r"\[ \boxed{17} \]", "17"),
    (r"$\boxed{17}$", "17"),
    (r"\boxed{17}", "17"),
    (r"\boxed 7", "7"),
    (r"\fbox{17}", "17"),
    (r"\boxed{\$17.50}", "17.50"),
    (r"\boxed{.35}", ".35"),
    ("The final answer is $17$.", "17"),
    ("The final answer is 17.", "17"),
    ("Final Answer: The final answer is $17$. I hope it is correct.", "17"),
    ("**Final Answer:** 17", "17"),
    ("The final answer is 1. No, the final answer is 2.", "2"),
    ("The final answer is:\n\\[\n17\n\\]", "17"),
    ("The final answer is $$\n17\n$$", "17"),
    (r"The final answer is \(x = 3\), as said.", "x = 3"),
    ("The final answer is $x=3$ or $x=4$.", "x=3 or x=4"),
    (r"\boxed{1} so \boxed{2}", "2"),
    (r"\boxed{1}. The final answer is $2$.", "2"),
    (r"The final answer is $1$, that is \boxed{2}.", "2"),
    (r"\boxed{1} so \boxed{2", "1"),  # cut off in mid-box: the last box that closes
    (r"The answer is $\boxed{2", None),
    (r"The answer is $1$. The answer is $\boxed{2", "1"),
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
    (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}"),
    (r"\boxed{}", ""),
    ("The answer is 17.", "17"),
    ("So it is **58**", "58"),
    ("**58**", "58"),
    ("58", "58"),
    (r"(3, \frac{\pi}{2})", r"(3, \frac{\pi}{2})"),
    ("n=2,3,4", "n=2,3,4"),
    ("We add the numbers.", None),
    ("First 3\nthen 4", None),
    ("", None),
]


@pytest.mark.parametrize("text, answer", MATH_ANSWER)
def test_math_answer(text: str, answer: str | None) -> None:
    """S3, extraction."""
    assert extract.math_answer(text) == answer


PLAIN_MATH = [
    (r"\dfrac{1}{2}", r"\frac{1}{2}"),
    (r"\frac12", r"\frac{1}{2}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    (r"90^\circ", "90"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"11,\!111", "11111"),
    (r"\$32,\!348", "32348"),
    (r"10\%", "10"),
    (r"\sqrt2", r"\sqrt{2}"),
    (r"x \leftarrow 1", r"x\leftarrow1"),
    ("1,2", "1,2"),
]


@pytest.mark.parametrize("answer, plain", PLAIN_MATH)
def test_plain_math(answer: str, plain: str) -> None:
    assert extract.plain_math(answer) == plain
