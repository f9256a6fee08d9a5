"""Single settings: what is taken, and the line that names what is not."""

import math
from typing import Any

import numpy as np
import pytest

from entropycache.settings import flag, real, whole


def at_least_zero(value: float) -> bool:
    return value >= 0


@pytest.mark.parametrize("value", [0, 0.5, math.inf, np.float32(2)])
def test_numbers_are_taken(value: Any) -> None:
    assert real("tau", value, at_least_zero, "0 or above") == float(value)


@pytest.mark.parametrize("value", [-1, math.nan, "0.5", None, True, [1]])
def test_what_is_no_number_within_is_named(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        real("tau", value, at_least_zero, "0 or above")
    assert str(caught.value) == f"tau {value!r} must be 0 or above"


@pytest.mark.parametrize("value", [2, 2.0, np.int64(2)])
def test_whole_numbers_are_taken_however_they_are_written(value: Any) -> None:
    taken = whole("k", value, 0)
    assert taken == 2 and isinstance(taken, int)


@pytest.mark.parametrize("value", [-1, 2.5, math.inf, math.nan, "2", None, False])
def test_what_is_no_whole_number_is_named(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        whole("k", value, 0, "tokens")
    assert str(caught.value) == f"k {value!r} must be a whole number of tokens, 0 or above"
    with pytest.raises(ValueError, match="must be a whole number, 0 or above"):
        whole("k", value, 0)


@pytest.mark.parametrize("value", ["flase", "true", 1, None])
def test_a_flag_is_true_or_false_and_nothing_like_it(value: Any) -> None:
    assert flag("as_published", True) and not flag("as_published", False)
    with pytest.raises(ValueError, match="as_published .* must be true or false"):
        flag("as_published", value)
