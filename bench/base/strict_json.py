"""Frozen dataclasses to JSON and back, strictly: no unknown field, no coercion, no NaN."""

from __future__ import annotations

import json
import math
import re
import types
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import chain, repeat
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_MAX_DEPTH = 64


class DecodeError(ValueError):
    """A document does not have the shape that its type demands."""


def canonical_json(value: Any) -> bytes:
    """One value, one sequence of bytes: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def pretty_json(value: Any) -> bytes:
    """Canonical too, but for people: one line a field, sorted."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def strict_loads(data: bytes | str) -> Any:
    """JSON as RFC 8259 has it, without duplicate keys, NaN, or a number past 2**53."""
    try:
        value = _plain_json(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
        if value is _NOT_PLAIN:
            value = json.loads(
                data.decode("utf-8") if isinstance(data, bytes) else data,
                object_pairs_hook=_unique_pairs,
                parse_constant=_refuse_constant,
                parse_int=_bounded_int,
                parse_float=_finite_float,
            )
            _count_keys(value)
    except RecursionError:
        raise DecodeError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise DecodeError(f"not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    return value


_NOT_PLAIN = object()
_SPACED = re.compile(rb'"\s+:')  # a colon apart from its key
# The shape of a text: every digit as 0, whatever a number can begin behind as a colon, no plus. Sixteen
# digits there may be past 2**53, or past a double if there are hundreds, and so may three of an exponent.
# The first may be but a part of some name: then the other way looks closer.
_SHAPE = bytes.maketrans(b"123456789E,[- \t\r\n", b"000000000e:::::::")
_LONG_NUMBER, _LONG_EXPONENT = b":" + b"0" * 16, re.compile(rb":[0.]+e000")


def _plain_json(data: bytes) -> Any:
    """The value of a text that is so plain that little has to be looked for in it, which is most of a bundle.

    Several times faster than looking at every key and number as it is read. Without an escape and without
    space before a colon, each key ends in `":`, and so may the beginning of a string; if there are no more
    of these than keys in the value, no key was dropped for standing twice.
    """
    if not data.startswith((b"{", b"[")) or b"\\" in data or _has_spaced_colon(data):
        return _NOT_PLAIN
    shape = data.translate(_SHAPE, b"+")
    if _LONG_NUMBER in shape or (b"e000" in shape and _LONG_EXPONENT.search(shape)):
        return _NOT_PLAIN
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        return _NOT_PLAIN  # the other way tells what is wrong with it
    return value if data.count(b'":') == _count_keys(value) else _NOT_PLAIN


def _has_spaced_colon(data: bytes) -> bool:
    if b"\n" in data or b"\t" in data or b"\r" in data:
        return _SPACED.search(data) is not None
    return b'" :' in data or b'"  ' in data


def _count_keys(value: Any) -> int:
    """Of all objects in it. What the parser can nest, the code after it may not be able to follow."""
    keys, level = 0, [value]
    for _ in range(_MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if _Refused in kinds:
            raise DecodeError(_placed(value, ""))
        if dict not in kinds and list not in kinds:
            return keys
        objects = level if kinds == {dict} else [item for item in level if type(item) is dict]
        lists = [item for item in level if type(item) is list] if list in kinds else []
        keys += sum(map(len, objects))
        level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(lists)]
    raise DecodeError("nested too deeply")


_PLAIN = (str, int, float, bool)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DecodeError(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> Any:
    raise DecodeError(f"{name} is no JSON number")


class _Refused(str):
    """Why a number is, in its place until that can be named."""


def _placed(value: Any, place: str) -> str | None:
    if isinstance(value, _Refused):
        return f"{place or '/'}: {value}"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (_placed(item, f"{place}/{name}") for name, item in items)), None)


def _bounded_int(text: str) -> int | _Refused:
    if len(text) < 16 or (len(text) <= len("-9007199254740992") and abs(int(text)) <= 2**53):
        return int(text)
    return _Refused(f"the integer {_cut(text)} is past 2**53 and would lose its value elsewhere")


def _finite_float(text: str) -> float | _Refused:
    value = float(text)
    return value if math.isfinite(value) else _Refused(f"the number {_cut(text)} does not fit a double")


def _cut(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:20]}…"


def to_json(value: Any) -> Any:
    """Plain JSON values; tuples become lists."""
    kind: Any = type(value)
    if kind in _PLAIN or value is None:  # most of what a bundle holds
        return value
    if names := _field_names(kind):
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()


def from_json(cls: type[T], value: Any) -> T:
    """The inverse of `to_json`; DecodeError names the place that does not fit."""
    decoded: T = _decode(cls, value, "")
    return decoded


def union_from_json(union: Any, value: Any) -> Any:
    """The same for a union of dataclasses, told apart by their field `kind`."""
    return _decode(union, value, "")


def _decode(kind: Any, value: Any, path: str) -> Any:
    if type(value) is kind and kind in _PLAIN:  # most of what a bundle holds
        return value
    origin, holds_fields, arguments = _sort(kind)
    if kind is Any:
        return value
    if holds_fields:
        return _decode_dataclass(kind, value, path)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value, path)
    if origin is Literal:
        if value in arguments and type(value) in {type(a) for a in arguments}:
            return value
        raise DecodeError(f"{path or '/'}: {value!r:.60} is none of {', '.join(map(repr, arguments))}")
    if origin is tuple:
        return _decode_tuple(arguments, value, path)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise DecodeError(f"{path or '/'}: expected an object")
        return {key: _decode(arguments[1], item, f"{path}/{key}") for key, item in value.items()}
    return _decode_scalar(kind, value, path)


@cache
def _sort(kind: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """What a type is made of; asked a thousand times a bundle."""
    return get_origin(kind), is_dataclass(kind), get_args(kind)


def _decode_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if kind is type(None) and value is None:
        return None
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise DecodeError(f"{path or '/'}: expected {getattr(kind, '__name__', kind)}, found {value!r:.60}")


def _decode_tuple(arguments: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DecodeError(f"{path or '/'}: expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] in _PLAIN and all(type(item) is arguments[0] for item in value):
            return tuple(value)
        if is_dataclass(arguments[0]) and (rows := _decode_rows(arguments[0], value)) is not None:
            return rows
        return tuple(_decode(arguments[0], item, f"{path}/{i}") for i, item in enumerate(value))
    if len(arguments) != len(value):
        raise DecodeError(f"{path or '/'}: expected {len(arguments)} items, found {len(value)}")
    return tuple(
        _decode(a, item, f"{path}/{i}") for i, (a, item) in enumerate(zip(arguments, value, strict=True))
    )


def _decode_rows(kind: Any, value: list[Any]) -> tuple[Any, ...] | None:
    """Many small dataclasses of plain fields, column by column; None where one of them is anything else."""
    hints, required = _shape(kind)
    if required != hints.keys() or not all(hint in _PLAIN for hint in hints.values()):
        return None
    if set(map(type, value)) != {dict} or set(map(len, value)) != {len(hints)}:
        return None
    try:
        columns = [[item[name] for item in value] for name in hints]
    except KeyError:
        return None
    if any(set(map(type, c)) != {hint} for c, hint in zip(columns, hints.values(), strict=True)):
        return None
    return _instances(kind, hints, columns)


def _instances(kind: Any, names: Iterable[str], columns: list[list[Any]]) -> tuple[Any, ...]:
    """As the constructor makes them, if it does nothing but keep its arguments, in half of its time."""
    if "__slots__" not in vars(kind) or hasattr(kind, "__post_init__"):
        return tuple(map(kind, *columns))
    made = tuple(map(object.__new__, repeat(kind, len(columns[0]))))
    for name, column in zip(names, columns, strict=True):
        deque(map(getattr(kind, name).__set__, made, column), maxlen=0)
    return made


def _decode_union(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    kind = type(value)
    if kind in arguments and (value is None or kind in _PLAIN):
        return value
    if isinstance(value, dict) and "kind" in value:
        for candidate in arguments:
            if is_dataclass(candidate) and _kind_of(candidate) == value["kind"]:
                return _decode(candidate, value, path)
    errors = []
    for candidate in arguments:
        try:
            return _decode(candidate, value, path)
        except DecodeError as error:
            errors.append(str(error))
    raise DecodeError(errors[0])


def _kind_of(cls: Any) -> str | None:
    default = next((f.default for f in fields(cls) if f.name == "kind"), None)
    return default if isinstance(default, str) else None


@cache
def _shape(cls: type) -> tuple[dict[str, Any], frozenset[str]]:
    hints = get_type_hints(cls)
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    return {f.name: hints[f.name] for f in fields(cls)}, frozenset(required)


def _decode_dataclass(cls: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise DecodeError(f"{path or '/'}: expected an object")
    hints, required = _shape(cls)
    unknown = value.keys() - hints.keys()
    missing = required - value.keys()
    if unknown or missing:
        what = "unknown" if unknown else "missing"
        raise DecodeError(f"{path or '/'}: {what} field {sorted(unknown or missing)[0]!r:.60}")
    return cls(**{name: _decode(hints[name], item, f"{path}/{name}") for name, item in value.items()})
