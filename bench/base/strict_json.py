"""Convert frozen dataclasses to JSON and back, strictly: no unknown fields, no coercion, no NaN. Pure."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bench.base.fast_json import NOT_PLAIN, SCALARS, count_keys, decode_rows, plain_json

T = TypeVar("T")
ALLOWED_NUMBERS = "allowed: finite numbers, and integers up to 2**53"
LATER = "later"  # key of a field's metadata: see `later`
INTERNAL = {"internal": True}  # metadata of a field that `to_json` leaves out: other programs never see it


_HALF_OF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")  # an escape that begins or ends a surrogate pair


class DecodeError(ValueError):
    """A text is not strict JSON, or a document does not have the shape of its type.

    The message names the place and the reason, such as "/seconds: expected float, found 'x'", and the caller
    puts the name of the document in front. `advice` says what a person who wrote the document could write
    instead; None if the message is enough.
    """

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice


def canonical_json(value: Any) -> bytes:
    """Serialise so that equal values give equal bytes: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def pretty_json(value: Any) -> bytes:
    """Serialise for people: sorted keys, one line for each field. Equal values give equal bytes."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def harmless_json(data: bytes) -> bytes:
    """Escape the characters of untrusted JSON that a terminal would interpret; its value stays the same.

    Outside of strings, JSON allows only one of them, the carriage return, which becomes a line feed.
    """
    text = data.decode(errors="replace").replace("\r", "\n")
    return "".join(c if c.isprintable() or c in "\n\t" else _in_hexadecimal(c) for c in text).encode()


def _in_hexadecimal(character: str) -> str:
    """Return the escape of a character in JSON, a pair of them beyond 16 bits."""
    digits = character.encode("utf-16-be").hex()
    return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))


def strict_loads(
    data: bytes | str, constant: Callable[[str], Any] | None = None, *, undecoded: bool = False
) -> Any:
    """Parse JSON of RFC 8259; DecodeError for duplicate keys, NaN, integers past 2**53, broken characters.

    `constant` takes NaN, Infinity and -Infinity, which are not JSON, and returns what to read in their place.
    A broken character is half of a surrogate pair: no text with it can be written or shown. `undecoded` keeps
    such halves, which stand for bytes of paths that are not UTF-8; use it for files that only bench writes.
    """
    try:
        value = plain_json(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
        if value is NOT_PLAIN:
            value = json.loads(
                data.decode("utf-8") if isinstance(data, bytes) else data,
                object_pairs_hook=_unique_pairs,
                parse_constant=constant or _refused_constant,
                parse_int=_bounded_int,
                parse_float=_finite_float,
            )
            _require_readable(value)
            if not undecoded and (isinstance(data, str) or _HALF_OF_A_PAIR.search(data)):
                _require_whole_characters(value)
    except RecursionError:
        raise DecodeError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise DecodeError(f"not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    return value


def tagged_infinity(name: str) -> Mapping[str, str] | str:
    """Return Infinity as the object that newer versions of transformers write for it, which is JSON.

    For `strict_loads`, which refuses NaN: published configurations contain Infinity, and none contains NaN.
    """
    return {"__float__": name} if name != "NaN" else _refused_constant(name)


def _require_readable(value: Any) -> None:
    """Raise DecodeError for a value that is nested too deeply or holds a refused number."""
    keys, kinds = count_keys(value)
    if keys is None:
        raise DecodeError("nested too deeply")
    if _Refused in kinds:
        raise DecodeError(str(_first_refused(value, "")), ALLOWED_NUMBERS)


def _require_whole_characters(value: Any) -> None:
    """Raise DecodeError for half of a surrogate pair in a text or a key; a whole pair is one character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DecodeError("a text holds half of a surrogate pair") from None


def whole_texts(line: bytes) -> Any:
    """Parse a line of JSON from another process of bench; halves of surrogate pairs in its texts become "?".

    Such halves stand for bytes of file names that are not UTF-8, and come with messages about these files.
    """
    value = json.loads(line)
    if _HALF_OF_A_PAIR.search(line):
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DecodeError(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return result


class _Refused(str):
    """Placeholder for a refused number; carries the reason until the number's path is known."""


def _first_refused(value: Any, path: str) -> str | None:
    """Return the path and the reason of the first refused number in a value."""
    if isinstance(value, _Refused):
        return f"{path or '/'}: {value}"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (_first_refused(item, f"{path}/{name}") for name, item in items)), None)


def _refused_constant(name: str) -> _Refused:
    return _Refused(f"{name} is no JSON number")


def _bounded_int(text: str) -> int | _Refused:
    if len(text) < 16 or (len(text) <= len("-9007199254740992") and abs(int(text)) <= 2**53):
        return int(text)
    return _Refused(f"the integer {_cut(text)} is past 2**53, so other programs would round it")


def _finite_float(text: str) -> float | _Refused:
    value = float(text)
    return value if math.isfinite(value) else _Refused(f"the number {_cut(text)} does not fit a double")


def _cut(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:20]}…"


def to_json(value: Any) -> Any:
    """Convert dataclasses and mappings to dicts, and tuples, also named ones, to lists; keep other values."""
    kind: Any = type(value)
    if kind in SCALARS or value is None:  # most of what a bundle holds
        return value
    if names := _field_names(kind):
        found = {name: to_json(getattr(value, name)) for name in names}
        for name, default in _later_fields(kind):
            if found[name] == default:
                del found[name]
        return found
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def field_values(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, with their values unconverted."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def later(default: Any) -> Any:
    """Return a dataclass field that was added after bundles were written.

    `to_json` leaves it out while it has its default, so that old values keep their JSON and their digests.
    """
    return field(default=default, metadata={LATER: True})


@cache
def _later_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names and the defaults, as JSON, of the fields of a dataclass that `later` made."""
    return tuple((f.name, to_json(f.default)) for f in fields(kind) if LATER in f.metadata)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.metadata != INTERNAL) if is_dataclass(kind) else ()


def from_json(cls: type[T], value: Any) -> T:
    """Decode a result of `to_json` to a value of type `cls`; DecodeError names the place of a mismatch."""
    decoded: T = _decode(cls, value, "")
    return decoded


def union_from_json(union: Any, value: Any) -> Any:
    """Decode a value of a union of dataclasses, which their field `kind` tells apart."""
    return _decode(union, value, "")


def _decode(kind: Any, value: Any, path: str) -> Any:
    if type(value) is kind and kind in SCALARS:  # most of what a bundle holds
        return value
    origin, holds_fields, arguments = _parts_of(kind)
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
    if kinds := _kinds_in_named_tuple(kind):
        return kind(*_decode_tuple(kinds, value, path))
    return _decode_scalar(kind, value, path)


@cache
def _kinds_in_named_tuple(kind: Any) -> tuple[Any, ...]:
    """Return the types of a named tuple's items; none for a type of another kind."""
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return ()
    hints = get_type_hints(kind)
    return tuple(hints[name] for name in kind._fields)


@cache
def _parts_of(kind: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Return a type's origin, whether it is a dataclass, and its arguments; cached for speed."""
    return get_origin(kind), is_dataclass(kind), get_args(kind)


def _decode_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise DecodeError(f"{path or '/'}: expected {getattr(kind, '__name__', kind)}, found {value!r:.60}")


def _decode_tuple(arguments: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DecodeError(f"{path or '/'}: expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] in SCALARS and all(type(item) is arguments[0] for item in value):
            return tuple(value)
        row_type: Any = arguments[0]
        if _parts_of(row_type)[1]:
            hints, required = _shape(row_type)
            if required == hints.keys() and (rows := decode_rows(row_type, hints, value)) is not None:
                return rows
        return tuple(_decode(arguments[0], item, f"{path}/{i}") for i, item in enumerate(value))
    if len(arguments) != len(value):
        raise DecodeError(f"{path or '/'}: expected {len(arguments)} items, found {len(value)}")
    return tuple(
        _decode(a, item, f"{path}/{i}") for i, (a, item) in enumerate(zip(arguments, value, strict=True))
    )


def _decode_union(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if type(value) in arguments:  # a plain value of one of the types
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
