"""Order the versions of Debian packages, as dpkg does (Debian Policy, section 5.6.12). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = r"[A-Za-z0-9.+~]+"
_VERSION = re.compile(
    rf"(?:(?P<epoch>[0-9]+):)?(?P<upstream>{_TEXT}(?:-{_TEXT})*?)(?:-(?P<revision>{_TEXT}))?"
)
_PART = re.compile(r"([^0-9]*)([0-9]*)")
_END = (0,)  # the end of a part: after ~ and before every other character

Part = tuple[tuple[tuple[int, ...], int], ...]


class DebianVersion(NamedTuple):
    """A version in a form whose natural order is that of dpkg."""

    epoch: int
    upstream: Part
    revision: Part


def debian_version(text: str) -> DebianVersion:
    """Parse the version of a Debian package; ValueError if it is malformed."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is not a version of a Debian package")
    return DebianVersion(int(match["epoch"] or 0), _part(match["upstream"]), _part(match["revision"] or "0"))


def _part(text: str) -> Part:
    """Split into pairs of letters and number, which are compared in turn; an empty pair ends them."""
    return tuple((_letters(letters), int(digits or 0)) for letters, digits in _PART.findall(text))


def _letters(text: str) -> tuple[int, ...]:
    """Order characters: ~ before the end, then letters, then all others."""
    weights = (-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 256 for c in text)
    return (*weights, *_END)
