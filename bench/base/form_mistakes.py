"""Parse documents that people write, and find every mistake in their form.

Mistakes are fields that do not fit a dataclass, and texts of several lines. `strict_json.from_json` stops at
the first mistake. Pure.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bench.base.errors import BadInput, Mistake, in_json, nearest
from bench.base.kinds_of_file import Kind, kind_of, kind_of_document, require_kind
from bench.base.strict_json import DecodeError, from_json, strict_loads

WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def written_json(data: bytes, where: str, wanted: Kind, constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON that a person wrote; raise BadInput if it is malformed, or a file of another kind."""
    needed = f"needed: {wanted.words}, as JSON"
    if not data.strip():
        raise BadInput("is empty", where=where, advice=needed)
    try:
        document = strict_loads(data, constant)
    except DecodeError as error:
        require_kind(wanted, kind_of(data), where)
        raise BadInput(str(error), where=where, advice=error.advice or needed) from None
    require_kind(wanted, kind_of_document(document), where)
    return document


def form_mistakes(kind: Any, value: Any, path: str = "") -> Iterator[Mistake]:
    """Yield a mistake for each place where a parsed document does not fit the type `kind`."""
    if isinstance(value, dict) and (named := next(filter(is_dataclass, (kind, *_options(kind))), None)):
        yield from _field_mistakes(named, value, path)
    elif get_origin(kind) is tuple and isinstance(value, list):
        for i, item in enumerate(value):
            yield from form_mistakes(get_args(kind)[0], item, f"{path}/{i}")
    else:
        try:
            from_json(kind, value)
        except DecodeError:
            yield Mistake(path or "/", f"{in_json(value)} does not fit", f"allowed: {_words(kind)}")


def _field_mistakes(kind: Any, value: Mapping[str, Any], path: str) -> Iterator[Mistake]:
    hints = get_type_hints(kind)
    for name in sorted(value.keys() - hints.keys()):
        yield Mistake(f"{path}/{name}", "no such field", nearest(name, hints))
    for field in fields(kind):
        place = f"{path}/{field.name}"
        if field.name in value:
            yield from form_mistakes(hints[field.name], value[field.name], place)
        elif field.default is MISSING and field.default_factory is MISSING:
            yield Mistake(place, "missing", f"allowed: {_words(hints[field.name])}")


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()


def _words(kind: Any) -> str:
    if options := _options(kind):
        return " or ".join(map(_words, options))
    if get_origin(kind) is Literal:
        return ", ".join(map(in_json, get_args(kind)))
    if is_dataclass(kind):
        return f"an object with {', '.join(field.name for field in fields(kind))}"
    return WORDS.get(kind, "a list")


def line_breaks(value: Any, place: str = "") -> Iterator[str]:
    """Yield the path of each text, and of each field name, that has several lines."""
    if isinstance(value, str):
        if _has_several_lines(value):
            yield place
    elif isinstance(value, dict):
        for name, item in value.items():
            if _has_several_lines(name):
                yield f"{place}/{name!r:.60}"
            if isinstance(item, (str, dict, list)):  # most are numbers
                yield from line_breaks(item, f"{place}/{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from line_breaks(item, f"{place}/{number}")


def _has_several_lines(text: str) -> bool:
    return text.splitlines() not in ([], [text])
