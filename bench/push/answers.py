"""Parse the words of a node, which is not trusted: each value has a strict form and a largest size. Pure.

A function of this module returns a typed value or raises ValueError. A caller converts a whole answer inside
`with understood(...)`, so that an answer of any other form becomes EnvironmentCannot, the error of that node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.base.errors import EnvironmentCannot, cut
from bench.base.strict_json import strict_loads

TEXT_CHARACTERS = 200  # of a name, a version or a line of a node that is shown to the operator
PATH_CHARACTERS = 4096  # of a path on a node; Linux allows no more
_NUMBER = re.compile(r"[0-9]{1,15}")  # 15 digits count every byte of a disk, and are exact in any language
_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
_VERSION = re.compile(r"[0-9A-Za-z.+~_-]{1,64}")


@contextmanager
def understood(message: str, *, where: str | None = None, advice: str | None = None) -> Iterator[None]:
    """Turn the ValueError or LookupError of parsing an answer into EnvironmentCannot with this message."""
    try:
        yield
    except (ValueError, LookupError):
        raise EnvironmentCannot(message, where=where, advice=advice) from None


def is_number(word: str) -> bool:
    """Whether a word has 1 to 15 ASCII digits and nothing else, which `number` accepts."""
    return _NUMBER.fullmatch(word) is not None


def number(word: str) -> int:
    """Convert a word of 1 to 15 ASCII digits."""
    if not is_number(word):
        raise ValueError("not a number")
    return int(word)


def decimal(word: str) -> float:
    """Convert digits, and further digits behind a point if there is one."""
    if not _DECIMAL.fullmatch(word):
        raise ValueError("not a decimal number")
    return float(word)


def version(word: str) -> str:
    """Return a version such as 27.5.1-rc1; bench splits it into numbers later."""
    if not _VERSION.fullmatch(word):
        raise ValueError("not a version")
    return word


def short(text: str, most: int = TEXT_CHARACTERS) -> str:
    """Cut a text that is shown to the operator and decides nothing."""
    return cut(text, most)


def absolute_path(text: str) -> str:
    """Return a path that a node answered; ValueError if it is relative or very long."""
    if not text.startswith("/") or len(text) > PATH_CHARACTERS:
        raise ValueError("not an absolute path")
    return text


def json_fields(value: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return those fields of a JSON object that `kinds` names, without nulls; each must be of its kind."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    fields = {name: value[name] for name in kinds if value.get(name) is not None}
    for name, field in fields.items():
        if type(field) is not kinds[name]:
            raise ValueError(f"the field {name} is not of its type")
    return fields


def json_object(text: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Parse a JSON object, which lines of warnings may precede; see `json_fields`."""
    return json_fields(strict_loads(text[text.index("{") :]), kinds)


def json_texts(text: str) -> tuple[str, ...]:
    """Parse a JSON list of texts; null is an empty list."""
    value = strict_loads(text)
    texts = [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError("not a list of texts")
    return tuple(texts)
