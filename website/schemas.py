"""The published JSON Schemas as pages that people read; the files themselves lie beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from website.sources import ROOT, SCHEMAS

# Keywords that are told in words; any other is shown as it stands.
STRUCTURE = {"$schema", "$id", "$defs", "$ref", "title", "description", "properties", "required", "items"}
STRUCTURE |= {
    "additionalProperties",
    "oneOf",
    "anyOf",
    "allOf",
    "type",
    "const",
    "enum",
    "default",
    "examples",
}
STRUCTURE |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"}

Schema = dict[str, Any]


def schema_pages(root: Path = ROOT) -> dict[str, str]:
    """Return the pages by their places, and the schemas themselves."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / SCHEMAS).glob("*.json"))}
    schemas = {name: json.loads(text) for name, text in texts.items()}
    pages = {"schemas/index.md": _index(schemas)}
    pages |= {f"schemas/{name}.md": schema_page(name, schema) for name, schema in schemas.items()}
    return pages | {f"schemas/{name}.json": text for name, text in texts.items()}


def _index(schemas: dict[str, Schema]) -> str:
    lines = ["# Schemas", "", "JSON Schemas (draft 2020-12) of the files that people write. An editor that is"
             " given one completes and checks the file.", "", "| schema | file |", "|---|---|"]  # fmt: skip
    lines += [
        f"| [{_title(name, schema)}]({name}.md) | [{name}.json]({name}.json) |"
        for name, schema in schemas.items()
    ]
    return "\n".join([*lines, ""])


def _title(name: str, schema: Schema) -> str:
    return str(schema.get("title", name))


def schema_page(name: str, schema: Schema) -> str:
    """Return a page with every field of a schema: its type, its limits, and its description."""
    lines = [f"# {_title(name, schema)}", "", f"Download: [{name}.json]({name}.json)", ""]
    if "description" in schema:
        lines += [f"<p>{escape(schema['description'])}</p>", ""]
    lines += ["## Fields", "", *_fields(schema), ""]
    for key, one in schema.get("$defs", {}).items():
        if one:  # an empty definition allows everything, and has nothing to show
            lines += [f"## {key}", "", *_value(one), ""]
    return "\n".join(lines)


def _fields(schema: Schema) -> Iterator[str]:
    """Yield a list of an object's fields, as HTML, because Markdown has no lists of terms."""
    yield '<dl class="fields">'
    for key, one in schema.get("properties", {}).items():
        required = " <em>required</em>" if key in schema.get("required", ()) else ""
        yield f"<dt><code>{escape(key)}</code> {_kind(one)}{required}</dt>"
        yield f"<dd>{''.join(_details(one))}</dd>"
    if isinstance(other := schema.get("additionalProperties"), dict):
        yield f"<dt><em>any other name</em> {_kind(other)}</dt>"
        yield f"<dd>{''.join(_details(other))}</dd>"
    yield "</dl>"


def _value(schema: Schema) -> Iterator[str]:
    yield f"<p>{_kind(schema)}</p>"
    yield from _details(schema)


def _details(schema: Schema) -> Iterator[str]:
    """Yield the text below a field's name: description, default, examples, and inner fields."""
    if "description" in schema:
        yield f"<p>{escape(schema['description'])}</p>"
    if "default" in schema:
        yield f"<p>default: {_code(schema['default'])}</p>"
    if "examples" in schema:
        yield f"<p>such as {', '.join(map(_code, schema['examples']))}</p>"
    for keyword in sorted(schema.keys() - STRUCTURE):
        yield f"<p>{escape(keyword)}: {_code(schema[keyword])}</p>"
    choices = [one for keyword in ("oneOf", "anyOf", "allOf") for one in schema.get(keyword, ())]
    if choices:
        yield "<ul>" + "".join(f"<li>{_kind(one)}{''.join(_details(one))}</li>" for one in choices) + "</ul>"
    if isinstance(items := schema.get("items"), dict):
        yield f"<p>each: {_kind(items)}</p>{''.join(_details(items))}"
    if "properties" in schema or isinstance(schema.get("additionalProperties"), dict):
        yield "".join(_fields(schema))


def _kind(schema: Schema) -> str:
    """Say in a few words which values a schema allows."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f'<a href="#{name}">{escape(name)}</a>'
    if "const" in schema:
        return _code(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(map(_code, schema["enum"]))
    for keyword, words in (("oneOf", "one of these"), ("anyOf", "any of these"), ("allOf", "all of these")):
        if keyword in schema:
            return words
    kinds = schema.get("type", "any value")
    words = " or ".join(kinds) if isinstance(kinds, list) else kinds
    return " ".join(filter(None, [words, *_limits(schema)]))


def _limits(schema: Schema) -> Iterator[str]:
    said = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    for keyword, words in said.items():
        if keyword in schema:
            yield f"{words} {schema[keyword]}"
    low, high = schema.get("minItems"), schema.get("maxItems")
    if low is not None or high is not None:
        yield f"of {low or 0} to {high} items" if high is not None else f"of {low} items or more"


def _code(value: Any) -> str:
    return f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"
