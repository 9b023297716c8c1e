"""Read the tars in a Debian package, which is an ar archive. Runs on Python 3.9, as nodes may have it."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, cast

_AR_HEADER = 60  # bytes


def package_tars(file: BinaryIO) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and uncompressed stream of the package's tars: that of its control data, that of its files.

    Each stream has to be read before the next is asked for. ValueError for a file that is no package.
    """
    for name, _, size in _members(file):
        if name.startswith(("data.tar", "control.tar")):
            yield name, _decompressed(name, Section(file, size))


class Section:
    """The next `size` bytes of a file, as a file."""

    def __init__(self, file: Any, size: int) -> None:
        self._file, self._left = file, size

    def __enter__(self) -> Section:
        return self

    def __exit__(self, *_: object) -> None:
        """The file itself stays open."""

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes of the section, all that are left for -1; nothing at its end."""
        data: bytes = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _members(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and size of the members of a Debian package; the file stands at each one's start."""
    if file.read(8) != b"!<arch>\n":
        raise ValueError("not a Debian package")
    while len(header := file.read(_AR_HEADER)) == _AR_HEADER:
        start, digits = file.tell(), header[48:58].rstrip(b" ")
        if not digits.isdigit():  # a negative size would lead back to the same member, again and again
            raise ValueError("not a Debian package: a member has no size")
        size = int(digits)
        yield header[:16].decode("ascii").strip().rstrip("/"), start, size
        file.seek(start + size + size % 2)


def _decompressed(name: str, section: Any) -> IO[bytes]:
    if name.endswith(".xz"):
        return lzma.LZMAFile(section)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=section) if name.endswith(".gz") else section)
