"""Replace the characters of bench's own texts that the encoding of an output lacks."""

from __future__ import annotations

import codecs

IN_ASCII = {"±": "+-", "…": "...", "·": ".", "°": ""}  # other characters are escaped


def spelled(text: str, encoding: str | None) -> str:
    """Replace ± and the like if the encoding lacks them, before layout counts the characters of a text."""
    if text.isascii() or codecs.lookup(encoding or "utf-8").name == "utf-8":
        return text
    return "".join(IN_ASCII.get(c, c) if not _has(c, encoding or "utf-8") else c for c in text)


def _has(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def can_spell(text: str, encoding: str | None) -> bool:
    """Whether an encoding has every character of a text."""
    return all(_has(character, encoding or "utf-8") for character in text)
