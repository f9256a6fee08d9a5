"""Checks of single settings, each with one line for the error: the name, the value, and what would do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import TypeVar

T = TypeVar("T")


def real(name: str, value: object, within: Callable[[float], bool], would: str) -> float:
    """The number `value`. Raises ValueError where it is no number, or not within what would do."""
    if isinstance(value, bool) or not isinstance(value, Real) or not within(float(value)):
        raise ValueError(f"{name} {value!r} must be {would}")
    return float(value)


def whole(name: str, value: object, least: int, of: str = "") -> int:
    """The whole number `value`, 4.0 included. Raises ValueError where it is none, or below `least`."""
    would = f"a whole number{of and f' of {of}'}, {least} or above"
    return int(real(name, value, lambda number: number.is_integer() and number >= least, would))


def number(name: str, value: object) -> float:
    """The number `value`, infinity included. Raises ValueError for anything else, NaN too."""
    return real(name, value, lambda number: not math.isnan(number), "a number (infinity is .inf)")


def share(name: str, value: object) -> float:
    """The share `value`. Raises ValueError where it is not between 0 and 1."""
    return real(name, value, lambda number: 0 < number < 1, "a share between 0 and 1")


def several(name: str, values: object, each: Callable[[str, object], T]) -> list[T]:
    """The list `values`, each value checked by `each`. Raises ValueError for no list, an empty one, or what `each`
    raises it for.
    """
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ValueError(f"{name}={values} must be a list of one value or more")
    return [each(name, value) for value in values]


def flag(name: str, value: object) -> bool:
    """The truth value `value`. Raises ValueError for anything else, words and numbers too."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} {value!r} must be true or false")
    return value


def choice(name: str, value: T, known: Iterable[T]) -> T:
    """The value, if it is one of those known. Raises ValueError that lists them."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; known: {', '.join(map(str, known))}")
    return value
