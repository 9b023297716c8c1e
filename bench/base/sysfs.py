"""Read small files below /sys and /proc; any of them may be missing, or refused by its driver."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

MOST_CHARACTERS = 200
_PURPOSE = b"bench: which node checks are of one machine"


def first_line(path: Path) -> str:
    """Return a file's first line in printable characters; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            line = file.readline(4 * MOST_CHARACTERS).decode("utf-8", "replace")
    except (OSError, ValueError):  # a name with a zero byte is a ValueError
        return ""
    return short_line(line)


def short_line(text: str) -> str:
    """Return a text on one line of at most MOST_CHARACTERS; unprintable characters become question marks."""
    line = " ".join(text.split())[:MOST_CHARACTERS]
    return "".join(character if character.isprintable() else "?" for character in line)


def whole(text: str) -> int | None:
    """Parse a number without sign or fraction; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def numbers_of(text: str) -> tuple[int, ...]:
    """Parse a list of numbers as the kernel writes it, such as 0-3,8; empty for another text."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        return ()
    parts = (part.partition("-") for part in text.split(","))
    return tuple(n for first, _, last in parts for n in range(int(first), int(last or first) + 1))


def machine_digest(root: Path = Path("/")) -> str:
    """Return an identity of this machine that reveals nothing about it; empty if the machine has none.

    machine-id(5) must not leave the machine; systemd recommends such a keyed hash in its place.
    """
    identity = first_line(root / "etc" / "machine-id")
    return hmac.new(identity.encode(), _PURPOSE, hashlib.sha256).hexdigest()[:16] if identity else ""
