"""Files that other processes may have made or may read: bounded reads, whole writes, append-only lines."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from bench.base.errors import BadInput, BenchError, near
from bench.base.kinds_of_file import Kind, kind_of, require_kind
from bench.base.operating_system import BINARY, WITHOUT_WAITING, lock
from bench.base.system_advice import advice_on

MOST_NAMES = 1000  # of a folder, among which the name of a missing file is looked for


class _RegularFile(io.FileIO):
    """A file whose failed reads raise an error of bench with its path: an OSError of a read has no path."""

    def __init__(self, descriptor: int, path: Path, advice: str | None, unreadable: type[BenchError]) -> None:
        super().__init__(descriptor, "rb")
        self._path, self._advice, self._unreadable = path, advice, unreadable

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            advice = self._advice or advice_on(error, self._path, reading=True)
            raise self._unreadable(message, where=str(self._path), advice=advice) from None

    def readinto(self, buffer: Any, /) -> Any:
        with self._reading():
            return super().readinto(buffer)

    def readall(self) -> Any:
        with self._reading():
            return super().readall()

    def seek(self, position: int, whence: int = io.SEEK_SET, /) -> int:
        with self._reading():
            return super().seek(position, whence)


@contextmanager
def open_regular(
    path: Path, *, advice: str | None = None, unreadable: type[BenchError] = BadInput
) -> Iterator[io.BufferedReader]:
    """Open a regular file for reading. BadInput for anything else; never waits on a named pipe.

    A read that fails later, such as on a broken disk, raises `unreadable`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | BINARY | WITHOUT_WAITING)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", error)
        if isinstance(error, FileNotFoundError):
            advice = _nearest_file(path) or advice
        advice = advice or advice_on(error, path, reading=True)
        raise BadInput(f"cannot be opened: {reason}", where=str(path), advice=advice) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if advice is None and stat.S_ISDIR(mode):
            advice = "it is a folder: name a file in it"
        raise BadInput("is not a regular file", where=str(path), advice=advice)
    raw: Any = _RegularFile(descriptor, path, advice, unreadable)
    with io.BufferedReader(raw) as file:
        yield file


def read_bounded(
    path: Path,
    most_bytes: int,
    *,
    what: str,
    too_large: str,
    missing_advice: str | None = None,
    wanted: Kind | None = None,
) -> bytes:
    """Read a whole file of at most `most_bytes`; BadInput if it is missing, unreadable or larger.

    `what` is the subject of the messages about reading, such as "the prices"; "" where the path says enough.
    `too_large` is the whole message for a file that is too large, unless its kind is known and is not the
    wanted one. A smaller file is left to its parser.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        advice = None
        if isinstance(error, FileNotFoundError):
            advice = _nearest_file(path) or missing_advice
            if missing_advice:
                raise BadInput("no such file", where=str(path), advice=advice) from None
        advice = advice or advice_on(error, path, reading=True)
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{what} cannot be read: {reason}".lstrip(), where=str(path), advice=advice) from None
    if len(data) > most_bytes:
        if wanted is not None:
            require_kind(wanted, kind_of(data), str(path))
        raise BadInput(too_large, where=str(path))
    return data


def _nearest_file(path: Path) -> str | None:
    """Return advice to take the file whose name is most similar to that of a missing file, in its folder.

    A name with control characters is not suggested: nobody has typed it, and a line break could forge a line.
    """
    with suppress(OSError), os.scandir(path.parent) as entries:
        names = [
            entry.name
            for entry in islice(entries, MOST_NAMES)
            if entry.name != path.name and entry.name.isprintable()
        ]
        if close := near(path.name, names):
            return f"nearest: {path.with_name(close[0])}"
    return None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` at the end, or remove it if anything fails.

    So another process sees the old file or the whole new one, and never a part of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file atomically: a reader that waits for the file never sees a part of it."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


class AppendOnlyLines:
    """A locked file of lines, each of which counts once its newline is on the disk.

    A new file gets the permissions of `mode`, less the umask; an old one keeps its own. Raises OSError if the
    file cannot be opened; BlockingIOError if `wait` is false and another process holds the lock.
    """

    def __init__(self, path: Path, *, wait: bool, mode: int = 0o666) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, mode)
        self._file = os.fdopen(descriptor, "a+b", buffering=0)
        try:
            lock(self._file, wait=wait)
        except BaseException:
            self._file.close()
            raise

    def read(self) -> list[bytes]:
        """Return every line without its newline; cut a torn last line, which a crash leaves, off the file."""
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            self._file.truncate(whole)
            os.fsync(self._file.fileno())
        return data[:whole].splitlines()

    def append(self, line: bytes) -> None:
        """Append a line, whole or not at all: half a line on a full disk would damage the next one."""
        before, rest = self._file.seek(0, os.SEEK_END), line + b"\n"
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                self._file.truncate(before)
            raise

    def close(self) -> None:
        """Close the file, which also gives up its lock."""
        self._file.close()
