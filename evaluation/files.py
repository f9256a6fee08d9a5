"""Files that survive what happens to long runs: a kill in mid-write, a full disk, a folder that cannot be written."""

import errno
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class StoreError(RuntimeError):
    """Something cannot be written or read; one line that names the place and what would do."""


class RunBusyError(StoreError):
    """Another process is writing the run."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error of the file system into a StoreError that names the path."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}. Nothing written before is lost: "
            "make room or make the folder writable, or name another with results=..., and run again"
        ) from error


def make_folder(folder: Path) -> Path:
    """The folder, made if need be. Raises StoreError where nothing can be written in it."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "not writable")
    return folder


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place, whole and on disk, when the block ends without error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes a text file that is never seen half-written."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file that is never seen half-written. Raises ValueError for what JSON has not, e.g. a NaN."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def as_json(value: Any) -> Any:
    """The value as JSON knows it, which has no infinity."""
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises StoreError, naming the file, if there is none to be had."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error}); put it right, or delete the run to do it again") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} holds no record; put it right, or delete the run to do it again")
    return value


def as_line(record: Mapping[str, Any]) -> bytes:
    """The record as one line of JSON in ASCII, so that any tear leaves something that is no record."""
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a JSON-lines file (none where there is no file), and how many bytes they take up.

    A last line that is no record is what a killed process leaves: it is passed over. A last record that lacks only its
    newline is whole, and kept.

    Raises:
        StoreError: a line before the last is no record, or the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    records: list[dict[str, Any]] = []
    end = 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if (record := _parse(line)) is not None:
            records.append(record)
        elif end + len(line) + 1 < len(data):
            raise StoreError(f"{path}, line {number}: not a record; put it right, or delete the run to do it again")
        else:
            break
        end += len(line) + 1
    return records, min(end, len(data))


class Lines:
    """A JSON-lines file open for writing. Each record is one line, and on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file, without the torn line that a killed process may have left at its end."""
        self.path = path
        self.records, self._size = read_lines(path)
        with writing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._write(b"")
            if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
                self._write(b"\n")

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record.

        Raises:
            StoreError: it could not be written; the file holds what it held before.
            ValueError: it is not JSON, e.g. holds a NaN.
        """
        line = as_line(record)
        with writing(self.path):
            self._write(line)
        self.records.append(dict(record))

    def _write(self, data: bytes) -> None:
        os.ftruncate(self._file, self._size)  # what a failed write may have left
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._size + written)
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing in a folder, which is made if need be. The system drops it with the process.

    Raises:
        RunBusyError: another process holds it.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with writing(folder):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace") or "of unknown number"
                raise RunBusyError(
                    f"{folder}: process {owner} is writing this run; wait for it, or stop it first"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
