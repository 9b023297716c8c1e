"""Collect everything that `bench explain` can explain: rows of tables, sections, fields of manifests, models.

In: the pages of docs/ and the schemas that bench ships. Out: entries, each with its kind, names and facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from bench.base.errors import in_json
from bench.base.shipped_data import read_data, repository
from bench.manual.markdown import DocumentSection, DocumentTable, inline, sections, tables

SECTION, FIELD, MODEL, METHOD, EXIT_CODE = "section", "field", "model", "method", "exit code"
# The kinds of the tables whose rows explain a word: by page and heading, and by the table's first head.
# An empty heading stands for every section of the page.
TABLES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("json.md", "Exit codes"): {"code": EXIT_CODE},
    ("checks.md", "Exit codes"): {"exit code": EXIT_CODE},
    ("checks.md", "A fleet"): {"exit code": EXIT_CODE, "finding": "finding"},
    ("push.md", "Many nodes"): {"exit code": EXIT_CODE},
    ("push.md", "Node checks"): {"exit code": EXIT_CODE},
    ("guides/reproduce-a-result.md", "2. Run the same again here"): {"exit code": EXIT_CODE},
    ("checks.md", "The checks"): {"check": "check"},
    ("fabric.md", "What is checked"): {"check": "check"},
    ("checks.md", "The verdicts"): {"verdict": "verdict"},
    ("checks.md", "Duration"): {"level": "level"},
    ("trust.md", "In short"): {"level": "level"},
    ("compare.md", "Marks"): {"mark": "mark"},
    ("running.md", "Read the table"): {"column": "column"},
    ("running.md", "How a trial ends"): {"outcome": "outcome"},
    ("methods.md", "Methods: what each does and gains"): {"method": METHOD},
    ("manifest.md", "Methods"): {"value": "value of methods"},
    ("guides/your-own-model.md", "Objectives"): {"objective": "objective"},
    ("guides/your-own-model.md", "Optimizers and schedules"): {
        "optimizer": "optimizer",
        "schedule": "schedule",
    },
    ("images.md", "Images"): {"variant": "variant"},
    ("glossary.md", ""): {"term": "term"},
}
KINDS = (
    FIELD, EXIT_CODE, "verdict", "check", "finding", "mark", "outcome", METHOD, "value of methods", MODEL,
    "objective", "optimizer", "schedule", "column", "level", "variant", "term", SECTION,
)  # fmt: skip
NAMED_BESIDE = "`--columns`"  # the head of a column with further names
SCHEMAS = {
    "manifest-v1": "docs/manifest.md",
    "node-check-v1": "docs/checks.md#a-manifest-says-what-you-expect",
}
# Pages of results, and pages for developers of bench: `bench explain` names their sections, and does not
# print them.
RECORDS = frozenset(
    {
        "README.md", "accuracy.md", "architecture.md", "measurements.md", "models.md", "reference.md",
        "release.md", "settings.md", "testing.md",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ManualEntry:
    """The explanation of a word, or of a heading; its facts and its text are Markdown."""

    kind: str
    names: tuple[str, ...]  # what people call it, the first of them for the heading
    address: str  # where the documents have it
    facts: tuple[tuple[str, str], ...] = ()  # each with its own heading, which may be empty
    text: str = ""

    @property
    def is_record(self) -> bool:
        """Whether this is a section of a page in RECORDS: its address is shown, but not its text."""
        page = self.address.removeprefix("docs/").partition("#")[0]
        return self.kind == SECTION and page in RECORDS


@lru_cache(20_000)  # a word is compared with all names of the manual
def plain_name(text: str) -> str:
    """Return a name in the form in which names are compared."""
    return re.sub(r"[-_\s]+", " ", inline(text).casefold()).strip(" .:?").removeprefix("the ")


@cache
def entries(*, models: bool = True) -> tuple[ManualEntry, ...]:
    """Return all entries, ordered by kind and by TABLES. Reading the models takes the longest."""
    pages = [f"docs/{page}" for page, _ in TABLES]

    def place(entry: ManualEntry) -> tuple[int, int]:
        page = entry.address.partition("#")[0]
        return KINDS.index(entry.kind), pages.index(page) if page in pages else len(pages)

    return tuple(sorted([*_fields(), *(_models() if models else ()), *_documents()], key=place))


def has_documents() -> bool:
    """Whether bench came with its documents: an image has none."""
    return (repository() / "docs").is_dir()


def document_sections() -> Iterator[DocumentSection]:
    """Yield every section of the pages, but not of decision records."""
    folder = repository() / "docs"
    for path in sorted([*folder.glob("*.md"), *folder.glob("guides/*.md")]):
        yield from sections(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))


def _documents() -> Iterator[ManualEntry]:
    title = ""
    for section in document_sections():
        title = inline(section.heading) if section.level == 1 else title
        kinds = TABLES.get((section.page, section.heading)) or TABLES.get((section.page, ""), {})
        for table in tables(section.text) if kinds else ():
            if kind := kinds.get(table.heads[0]):
                of = (("page", title),) if kind == EXIT_CODE else ()
                yield from _rows(kind, table, section, of)
        yield ManualEntry(SECTION, (inline(section.heading),), section.address, text=section.text)


def _rows(
    kind: str, table: DocumentTable, section: DocumentSection, of: tuple[tuple[str, str], ...]
) -> Iterator[ManualEntry]:
    """Yield an entry for each row of a table; every entry also gets the facts `of`."""
    for row in table.rows:
        names = list(_names(row[0]))
        facts = []
        for head, cell in zip(table.heads[1:], row[1:], strict=True):
            if head == NAMED_BESIDE:
                names += _names(cell)
            if cell:
                facts.append((head, cell))
        yield ManualEntry(kind, tuple(dict.fromkeys(names)), section.address, (*facts, *of))


def _names(cell: str) -> Iterator[str]:
    for name in re.sub(r"\(.*?\)", "", inline(cell)).split(","):
        if bare := name.strip(' "'):
            yield bare


def _fields() -> Iterator[ManualEntry]:
    for name, address in SCHEMAS.items():
        schema = read_data(f"schema/{name}.json")
        found: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for path, field in _properties(schema, schema, ()):
            found.setdefault(path, field)  # a field of several kinds of object: the first of them
        for path, field in found.items():
            of = schema["title"].partition(":")[0]
            yield ManualEntry(FIELD, _names_of_field(path), address, tuple(_facts(of, field, schema)))


def _properties(
    at: Mapping[str, Any], schema: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield each field below a place of a schema with its path; items of lists have no name."""
    at = _resolved(at, schema)
    for name, field in at.get("properties", {}).items():
        resolved = _resolved(field, schema)
        yield (*path, name), resolved
        yield from _properties(resolved, schema, (*path, name))
    inner = (at.get("items"), at.get("additionalProperties"), *at.get("oneOf", ()), *at.get("anyOf", ()))
    for part in inner:
        if isinstance(part, Mapping):
            yield from _properties(part, schema, path)


def _resolved(at: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in at:
        return at
    found: Mapping[str, Any] = schema["$defs"][at["$ref"].rpartition("/")[2]]
    return found


def _names_of_field(path: Sequence[str]) -> tuple[str, ...]:
    """Return the dotted path and its ends: models.recipe.steps, recipe.steps, steps."""
    return tuple(".".join(path[i:]) for i in range(len(path)))


def _facts(of: str, field: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "", field["description"]
    if allowed := _allowed(field, schema):
        yield "allowed", allowed
    if "default" in field:
        yield "default", in_json(field["default"])
    if examples := field.get("examples"):
        yield "examples", ", ".join(in_json(example, most=100) for example in examples[:3])
    yield "of", of


def _allowed(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "const" in field:
        return in_json(field["const"])
    if "enum" in field:
        return ", ".join(map(in_json, field["enum"]))
    if forms := field.get("oneOf") or field.get("anyOf"):
        return "; or ".join(filter(None, (_allowed(_resolved(form, schema), schema) for form in forms)))
    types = field.get("type", ())
    words = " or ".join(TYPES[kind] for kind in ([types] if isinstance(types, str) else types))
    bounds = {
        "minimum": "from", "exclusiveMinimum": "more than", "maximum": "to", "minItems": "with at least",
    }  # fmt: skip
    limits = (f"{word} {field[key]:,}" for key, word in bounds.items() if key in field)
    within = f"with {', '.join(field['properties'])}" if "properties" in field else ""
    return " ".join(filter(None, (words, *limits, within)))


TYPES = {
    "string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "array": "a list", "object": "an object", "null": "null",
}  # fmt: skip


def _models() -> Iterator[ManualEntry]:
    """Yield the models that a manifest can name, each with its recipe."""
    from bench.training.models import known_models  # slow to import
    from bench.training.models.zoo import ZooModel, model_names, zoo_model

    for name in model_names():
        found = known_models().get(name) or zoo_model(name)
        if found is None:
            continue
        model = found.model if isinstance(found, ZooModel) else found
        recipe = model.recipe
        sizes = {size: getattr(recipe, size) for size in recipe.aim.sizes}
        shown = {
            "batch_size": recipe.batch_size,
            "steps": recipe.steps,
            "precision": recipe.precision,
            **sizes,
        }
        facts = [
            ("type", model.family),
            ("trains", recipe.aim.title),
            ("recipe", ", ".join(f"{key} {value}" for key, value in shown.items() if value is not None)),
            ("optimizer", f"{recipe.optimizer.name}, {recipe.schedule.name} schedule"),
            ("source", recipe.source),
        ]
        yield ManualEntry(MODEL, (name,), "docs/manifest.md#models", tuple(facts))
