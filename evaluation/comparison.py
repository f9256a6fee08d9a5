"""Which runs may stand in one comparison: those that differ in what is compared and in nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any


class IncomparableError(ValueError):
    """Two runs differ in more than what a comparison leaves free."""


_ABSENT = "(not set)"


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping) and value
        leaves.update(_flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return leaves


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys of two nested configurations that differ, each with both values, in the order of the keys."""
    one, two = _flat(first), _flat(second)
    return {
        key: (one.get(key, _ABSENT), two.get(key, _ABSENT))
        for key in dict.fromkeys([*one, *two])
        if one.get(key, _ABSENT) != two.get(key, _ABSENT)
    }


def comparable(first: Mapping[str, Any], second: Mapping[str, Any], *, free: Sequence[str] = ("method",)) -> None:
    """Refuses to compare two runs that differ in anything but the free keys.

    Args:
        first: configuration of a run, nested; together with what it ran on (device, attention kernel, ...).
        second: the other's.
        free: dotted keys that may differ, with all that lies under them: "decoding" frees "decoding.rule".

    Raises:
        IncomparableError: another key differs; the message names each such key and both values.
    """
    refused = {
        key: values
        for key, values in differences(first, second).items()
        if not any(key == name or key.startswith(f"{name}.") for name in free)
    }
    if refused:
        listed = "; ".join(f"{key} is {one!r} and {two!r}" for key, (one, two) in refused.items())
        raise IncomparableError(f"these runs cannot be compared: {listed}. Run both with the same value")
