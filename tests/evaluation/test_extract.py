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
