"""Values and messages between the judge and the solution: JSON, with a tag on everything that JSON lacks."""

import builtins
import json
import struct
import sys
import types
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

MAX_MESSAGE = 16 * 2**20  # bytes; no benchmark's value comes near it
CONTAINERS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
AS_TEXT = {"builtins.complex", "decimal.Decimal", "fractions.Fraction"}


def encode(value: Any, export: Callable[[Any], int]) -> Any:
    """`value` as tagged JSON. Subclasses cross as the builtin type below them, unknown objects as `export`'s number."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**53) < value < 2**53 else ["int", hex(value)]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, dict):
        return ["dict", [[encode(key, export), encode(item, export)] for key, item in value.items()]]
    if isinstance(value, range):
        return ["range", [encode(edge, export) for edge in (value.start, value.stop, value.step)]]
    for tag, kind in CONTAINERS.items():
        if isinstance(value, kind):
            return [tag, [encode(item, export) for item in value]]
    if name in AS_TEXT:
        return [name, str(value)]
    if isinstance(value, type) and value.__module__ == "builtins":
        return ["type", value.__name__]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if name.startswith("numpy.") and getattr(value, "ndim", None) == 0:
        return encode(value.item(), export)
    return ["object", export(value)]


def decode(data: Any, fetch: Callable[[int], Any]) -> Any:
    """The inverse of `encode`. ValueError for what it does not know: the sender may be hostile."""
    match data:
        case None | bool() | int() | float() | str():
            return data
        case ["int", str(text)]:
            return int(text, 16)
        case ["bytes", str(text)]:
            return bytes.fromhex(text)
        case ["dict", list(pairs)]:
            return {decode(key, fetch): decode(item, fetch) for key, item in pairs}
        case ["range", list(edges)]:
            return range(*(decode(edge, fetch) for edge in edges))
        case ["object", int(number)]:
            return fetch(number)
        case ["type", str(name)] if isinstance(getattr(builtins, name, None), type):
            return getattr(builtins, name)
        case ["module", str(name)] if name in sys.modules:  # never an import: that runs code
            return sys.modules[name]
        case [str(tag), list(items)] if tag in CONTAINERS:
            return CONTAINERS[tag](decode(item, fetch) for item in items)
        case [str(tag), str(text)] if tag in AS_TEXT:
            module, _, name = tag.partition(".")
            return getattr(import_module(module), name)(text)
    raise ValueError("the solution's process sent something that is no value")


def send(stream: BinaryIO, message: Any) -> None:
    data = json.dumps(message).encode()
    stream.write(struct.pack("!I", len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """The next message; EOFError when the other side is gone, ValueError when it is too long or no JSON."""
    header = stream.read(4)
    if len(header) < 4:
        raise EOFError
    (length,) = struct.unpack("!I", header)
    if length > MAX_MESSAGE:
        raise ValueError(f"the solution returned a value of more than {MAX_MESSAGE} bytes")
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return json.loads(data)
