"""Fast paths of strict_json: parse a plain text, and decode many rows of one type. Pure.

Most of a bundle is plain: it has no escapes and no numbers near the limits. Such a text is parsed by the C
parser alone, several times faster than with a Python call for each object and number. `plain_json` explains
why nothing wrong gets through; tests/base/test_codec.py compares its results with the slow parser's.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any

NOT_PLAIN = object()
SCALARS = (str, int, float, bool)
MAX_DEPTH = 64  # deeper documents are refused, because recursive code could not walk them
_SPACED = re.compile(rb'"\s+:')  # a colon that space separates from its key
# Maps a text to its shape: every digit to 0; every byte that a number can follow to a colon; E to e.
_SHAPE = bytes.maketrans(b"123456789E,[- \t\r\n", b"000000000e:::::::")
_LONG_NUMBER, _LONG_EXPONENT = b":" + b"0" * 16, re.compile(rb":[0.]+e000")


class _ConstantError(ValueError):
    """NaN or Infinity, which are not JSON."""


def plain_json(data: bytes) -> Any:
    """Parse a plain text; NOT_PLAIN if it is not plain or not valid, for the slow path to decide.

    No key occurs twice: without an escape and without space before a colon, every key ends in `":`. Strings
    can begin with these bytes too, so there are at least as many `":` in the text as keys. The parser drops
    a key that occurs twice. If the value still has as many keys as the text has `":`, it dropped no key.

    No number is too large: only 16 or more digits can be past 2**53, and only hundreds of digits or an
    exponent of three digits can be past a double. The shape of the text (see `_SHAPE`, and without
    "+") shows such numbers; a string can look like one, which only costs the slow path.
    """
    if not data.startswith((b"{", b"[")) or b"\\" in data or _has_spaced_colon(data):
        return NOT_PLAIN
    shape = data.translate(_SHAPE, b"+")
    if _LONG_NUMBER in shape or (b"e000" in shape and _LONG_EXPONENT.search(shape)):
        return NOT_PLAIN
    text = data.decode("utf-8")
    try:
        value = _DECODER.decode(text)
    except (json.JSONDecodeError, _ConstantError):
        return NOT_PLAIN
    keys, _ = count_keys(value)
    return value if data.count(b'":') == keys else NOT_PLAIN


def _refuse_constant(name: str) -> Any:
    raise _ConstantError(name)


# json.loads would make a decoder for each text.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _has_spaced_colon(data: bytes) -> bool:
    if b"\n" in data or b"\t" in data or b"\r" in data:
        return _SPACED.search(data) is not None
    return b" " in data and (b'" :' in data or b'"  ' in data)


def count_keys(value: Any) -> tuple[int | None, set[type]]:
    """Return the number of keys in all objects of a value (None past MAX_DEPTH), and the types in it."""
    keys, level, types = 0, [value], set[type]()
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        types |= kinds
        if dict not in kinds and list not in kinds:
            return keys, types
        objects = level if kinds == {dict} else [item for item in level if type(item) is dict]
        lists = [item for item in level if type(item) is list] if list in kinds else []
        keys += sum(map(len, objects))
        level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(lists)]
    return None, types


def decode_rows(cls: Any, hints: Mapping[str, Any], rows: list[Any]) -> tuple[Any, ...] | None:
    """Decode rows of a dataclass whose fields are all scalars and required, column by column.

    None if a field is not a scalar, or if a row does not have exactly these fields with exactly these types.
    """
    if not all(hint in SCALARS for hint in hints.values()):
        return None
    if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(hints)}:
        return None
    try:
        columns = [[row[name] for row in rows] for name in hints]
    except KeyError:
        return None
    for column, hint in zip(columns, hints.values(), strict=True):
        if set(map(type, column)) != {hint}:
            return None
    return _instances(cls, hints, columns)


def _instances(cls: Any, names: Mapping[str, Any], columns: list[list[Any]]) -> tuple[Any, ...]:
    """Make one instance for each row of the columns.

    A dataclass with slots and without __post_init__ only stores its arguments, so that its slots are filled
    directly, in half the time of its constructor. `deque(..., maxlen=0)` exhausts the iterator in C.
    """
    if "__slots__" not in vars(cls) or hasattr(cls, "__post_init__"):
        return tuple(map(cls, *columns))
    instances = tuple(map(object.__new__, repeat(cls, len(columns[0]))))
    for name, column in zip(names, columns, strict=True):
        deque(map(getattr(cls, name).__set__, instances, column), maxlen=0)
    return instances
