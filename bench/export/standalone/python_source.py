"""Python source: parts of a script, their imports in order, and values as literals.

Everything here yields text as `ruff format` writes it at 100 columns. Values may come from a stranger's
bundle, so every character of a text that is not plain ASCII becomes an escape. Pure.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

WIDTH = 100  # columns
INDENT = "    "
UNDERSCORED = 10_000  # whole numbers from here on have their thousands apart
TOKENS = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|, """)  # texts, and commas outside of them
INFINITE = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}  # how a configuration names them


@dataclass(frozen=True, slots=True)
class SourcePart:
    """A piece of a script about one subject: definitions, and their imports."""

    code: str
    imports: tuple[str, ...] = ()


def joined(parts: Iterable[SourcePart]) -> str:
    """Return the definitions of all parts, two empty lines apart."""
    return "\n\n\n".join(part.code.strip("\n") for part in parts if part.code)


def imports_of(parts: Iterable[SourcePart]) -> str:
    """Return the import lines of all parts: Python's own packages first, each package once."""
    asked = {line for part in parts for line in part.imports}
    blocks = [
        _block(
            line for line in asked if (line.split()[1].partition(".")[0] in sys.stdlib_module_names) is own
        )
        for own in (True, False)
    ]
    return "\n\n".join(block for block in blocks if block)


def _block(lines: Iterable[str]) -> str:
    plain: list[str] = []
    names: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.startswith("import "):
            plain.append(line)
        else:
            package, _, given = line.removeprefix("from ").partition(" import ")
            names[package] |= set(given.split(", "))
    plain.sort(key=lambda line: line.split()[1])
    return "\n".join([*plain, *(_from(package, names[package]) for package in sorted(names))])


def _from(package: str, names: Iterable[str]) -> str:
    ordered = sorted(names, key=lambda name: (_kind(name), name.lower(), name))
    line = f"from {package} import {', '.join(ordered)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {package} import (", *(f"{INDENT}{name}," for name in ordered), ")"])


def _kind(name: str) -> int:
    """Return 0 for a constant, 1 for a class, 2 for a function: the order of imported names."""
    return 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2


def text_literal(text: str) -> str:
    """Return a text as a literal in plain ASCII, with the quotation marks that need fewer escapes."""
    quote = '"' if text.count('"') <= text.count("'") else "'"
    return quote + "".join(_escaped(character, quote) for character in text) + quote


def _escaped(character: str, quote: str) -> str:
    if character in (quote, "\\"):
        return f"\\{character}"
    return character if " " <= character <= "~" else ascii(character)[1:-1]


def literal(value: Any) -> str:
    """Return a value of JSON as an expression on one line."""
    match value:
        case bool() | None:
            return str(value)
        case int():
            return f"{value:_}" if abs(value) >= UNDERSCORED else str(value)
        case float():
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        case str():
            return text_literal(value)
        case {"__float__": str(name)} if len(value) == 1 and name in INFINITE:
            return f'float("{INFINITE[name]}")'
        case Mapping():
            return "{" + ", ".join(f"{text_literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
        case _:
            return "[" + ", ".join(map(literal, value)) + "]"


def mapping_literal(name: str, value: Mapping[str, Any]) -> str:
    """Return an assignment of a mapping whose lines are filled, so that long ones can still be read."""
    whole = ", ".join(f"{text_literal(key)}: {literal(item)}" for key, item in value.items())
    return "\n".join([f"{name} = {{", *_filled(f"{INDENT}{whole},"), "}  # fmt: skip"])


def _filled(text: str) -> list[str]:
    """Return the items of a text on lines of at most 100 columns, longer only where a single item is."""
    lines = [text]
    while len(lines[-1]) > WIDTH:
        line = lines[-1]
        ends = [found.end() for found in TOKENS.finditer(line) if found[0] == ", "]
        if not ends:
            break
        end = max((end for end in ends if end <= WIDTH + 1), default=ends[0])  # a space at the end is cut
        lines[-1:] = [line[:end].rstrip(), f"{INDENT}{line[end:]}"]
    return lines


class Constant(NamedTuple):
    """A constant of a script."""

    name: str
    value: Any
    comment: str = ""

    def line(self) -> str:
        """Return the assignment, with the comment behind it."""
        value = self.value if isinstance(self.value, Raw) else literal(self.value)
        return f"{self.name} = {value}" + (f"  # {self.comment}" if self.comment else "")


class Raw(str):
    """An expression that is written as it is."""
