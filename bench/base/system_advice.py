"""Advice on errors of the operating system: the second line of a message says what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

_ADVICE: Mapping[int, str] = {
    errno.EISDIR: "it is a folder: name a file",
    errno.ENOTDIR: "a part of this path is a file: name another path",
    errno.EEXIST: "a file of this name is there: name another folder",
    errno.EACCES: "this user may not: change its permissions, or name another path",
    errno.EPERM: "this user may not: change its permissions, or name another path",
    errno.ENOSPC: "make room, or name a path on another disk",
    errno.EDQUOT: "make room, or name a path on another disk",
    errno.EROFS: "name a path on another disk, which can be written",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "a link points to itself: remove it, or name another path",
}


def advice_on(error: Exception, path: Path, *, reading: bool) -> str | None:
    """Return what to do about an error while a path was read or written; None if that is unknown."""
    if isinstance(error, FileNotFoundError):
        return _missing(path, reading=reading)
    return _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None


def _missing(path: Path, *, reading: bool) -> str | None:
    """Say that the folder of a path is missing or, of a file to read, in which folder it was looked for."""
    try:
        folder = path.absolute().parent
        found = folder.is_dir()
    except (OSError, ValueError):  # the working folder was removed, or a NUL in the path
        return None
    if not str(folder).isprintable():  # a line break could forge a line
        return None
    if not found:
        return f"there is no folder {folder}"
    return f"nothing of this name is in {folder}" if reading else None
