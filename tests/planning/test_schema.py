"""The JSON Schemas of manifests explain every field to an editor, and say what the parsers take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
from jsonschema import Draft202012Validator

from bench.base.shipped_data import read_data
from bench.base.strict_json import to_json
from bench.node_check import check_manifest
from bench.planning.manifest import parse_manifest
from bench.training.methods import known_methods
from bench.training.models import known_models
from bench.training.models.model import Lora, Recipe
from bench.training.models.recipes import IN_EPOCHS, IN_TOKENS, LIMITS
from bench.training.models.zoo import zoo_model, zoo_names
from bench.training.objectives import known_objectives
from bench.training.objectives.documents import Documents
from bench.training.optimizers import OPTIMIZERS
from bench.training.schedules import SCHEDULES

ROOT = Path(__file__).parents[2]
SCHEMAS = {name: read_data(f"schema/{name}.json") for name in ("manifest-v1", "node-check-v1")}
MANIFEST = SCHEMAS["manifest-v1"]
OWN = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
OWN |= {"num_attention_heads": 2, "vocab_size": 64}
RECIPE = {"objective": "causal-lm", "batch_size": 4, "steps": 900, "precision": "bf16", "sequence_length": 8}


class Described(NamedTuple):
    """One field or one form of a field in a schema; `path` ends with its name."""

    path: tuple[str, ...]
    schema: Mapping[str, Any]
    is_field: bool

    @property
    def name(self) -> str:
        return self.path[-1]


def walk(root: Mapping[str, Any]) -> Iterator[Described]:
    """Yield every place of a schema, references followed. A key beside one is lost in VS Code."""

    def below(at: Mapping[str, Any], path: tuple[str, ...], is_field: bool) -> Iterator[Described]:
        if "$ref" in at:
            assert at.keys() == {"$ref"}, path
            at = root["$defs"][at["$ref"].rpartition("/")[2]]
        yield Described(path, at, is_field)
        for name, inner in at.get("properties", {}).items():
            yield from below(inner, (*path, name), True)
        for key in ("items", "additionalProperties"):
            if isinstance(at.get(key), Mapping):
                yield from below(at[key], (*path, "*"), False)
        for inner in (*at.get("oneOf", ()), *at.get("anyOf", ())):
            yield from below(inner, path, False)

    yield from below(root, (), False)


PLACES = [(name, place) for name, schema in SCHEMAS.items() for place in walk(schema)]
IDS = [f"{name}:{'.'.join(place.path)}:{i}" for i, (name, place) in enumerate(PLACES)]


@pytest.mark.parametrize(("name", "place"), PLACES, ids=IDS)
def test_every_place_has_a_sentence_that_reads_alone(name: str, place: Described) -> None:
    text = place.schema.get("description", "")
    assert re.fullmatch(r"\S.*[^.]\.", text), place.path
    assert len(text) < 300


@pytest.mark.parametrize(("name", "place"), PLACES, ids=IDS)
def test_every_place_shows_a_value(name: str, place: Described) -> None:
    shown = {"examples", "enum", "const", "oneOf"} & place.schema.keys()
    assert shown or place.schema.get("type") in ("boolean", "null") or not place.path, place.path


@pytest.mark.parametrize(("name", "place"), PLACES, ids=IDS)
def test_every_example_and_default_is_valid(name: str, place: Described) -> None:
    rooted = {**place.schema, "$defs": SCHEMAS[name].get("$defs", {})}
    for value in (*place.schema.get("examples", ()), *([rooted["default"]] if "default" in rooted else ())):
        Draft202012Validator(rooted).validate(value)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_is_one_and_names_itself(schema: Mapping[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    assert schema["$id"].startswith("urn:bench:schema:")
    assert schema["title"]


# --- what a parser takes where a field is absent --------------------------------------------------------

# The objects in which a field can be absent, by the names of their path in the schema.
CONTAINERS: Mapping[tuple[str, ...], Mapping[str, Any]] = {
    (): {},
    ("timing",): {"loss_steps": 4},
    ("prove",): {},
    ("models", "*", "recipe"): {},
    ("models", "*", "recipe", "lora"): {"rank": 4, "targets": "all-linear"},
    ("models", "*", "recipe", "documents"): {"mean_tokens": 4},
}


def with_own_model(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "mine", "architecture": OWN, "recipe": {**RECIPE, **recipe}}


def made(path: tuple[str, ...], inside: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest in which the object at `path` is `inside`."""
    document: dict[str, Any] = {"schema": "bench/manifest/v1", "models": [with_own_model({})]}
    match path:
        case ():
            document |= inside
        case ("models", "*", "recipe"):
            document["models"] = [with_own_model(inside)]
        case ("models", "*", "recipe", name):
            document["models"] = [with_own_model({name: inside})]
        case ("models", "*"):
            document["models"][0] |= inside
        case (name,):
            document[name] = inside
        case _:
            raise AssertionError(path)
    return document


def meaning(document: Mapping[str, Any]) -> Any:
    return replace(parse_manifest(json.dumps(document).encode(), "m.json"), data=b"")


def defaults() -> Iterator[tuple[Described, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each field with a default, and the object that has it not, then as the default."""
    container: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for place in walk(MANIFEST):
        if "properties" in place.schema:
            named = place.schema["properties"].get("name", {})
            kind = named.get("const") or (named.get("enum") or [None])[-1]
            container[place.path] = {"name": kind} if kind else CONTAINERS.get(place.path, {})
        if place.is_field and "default" in place.schema:
            without = dict(container[place.path[:-1]])
            without.pop(place.name, None)
            yield place, without, {**without, place.name: place.schema["default"]}


DEFAULTS = [(p.path[:-1], before, after) for p, before, after in defaults()]


@pytest.mark.parametrize(
    ("path", "before", "after"),
    DEFAULTS,
    ids=[".".join([*p, *(a.keys() - b.keys())]) for p, b, a in DEFAULTS],
)
def test_a_default_is_what_the_parser_takes_for_an_absent_field(
    path: tuple[str, ...], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    assert after.keys() - before.keys()
    assert meaning(made(path, before)) == meaning(made(path, after))


def test_every_object_with_defaults_was_tried() -> None:
    tried = {(*path, name) for path, before, after in DEFAULTS for name in after.keys() - before.keys()}
    stated = {place.path for place in walk(MANIFEST) if place.is_field and "default" in place.schema}
    assert tried == stated
    assert len(tried) > 35


def test_the_defaults_of_a_node_check_are_its_parsers() -> None:
    schema = SCHEMAS["node-check-v1"]
    document = {"schema": "bench/node-check/v1"}
    stated = {name: field["default"] for name, field in schema["properties"].items() if "default" in field}
    plain = check_manifest.parse(json.dumps(document).encode(), "")
    full = check_manifest.parse(json.dumps(document | stated).encode(), "")
    assert replace(plain, data=b"") == replace(full, data=b"")


# --- what a parser allows -------------------------------------------------------------------------------


def part(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = MANIFEST["$defs"][name]["properties"]
    return found


OF_TYPES = {
    "lora": Lora, "documents": Documents, "adam": OPTIMIZERS["adam"], "adamw_8bit": OPTIMIZERS["adamw-8bit"],
    "muon": OPTIMIZERS["muon"], "decay": SCHEDULES["cosine"], "wsd": SCHEDULES["wsd"],
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TYPES)
def test_an_objects_fields_are_those_of_its_type(name: str) -> None:
    assert [*part(name)] == [field.name for field in fields(OF_TYPES[name])]


def test_a_recipes_fields_are_those_that_its_parser_reads() -> None:
    assert part("recipe").keys() == {field.name for field in fields(Recipe)} | {*IN_TOKENS, *IN_EPOCHS}


def test_numbers_have_the_limits_of_the_parser() -> None:
    limited = {
        place.name: (place.schema["minimum"], place.schema["maximum"])
        for place in walk(MANIFEST)
        if place.is_field and place.name in LIMITS and place.path[0] == "models"
    }
    assert limited == {name: LIMITS[name] for name in LIMITS}


def test_choices_are_those_of_the_parser() -> None:
    recipe = part("recipe")
    assert set(recipe["objective"]["enum"]) == {*known_objectives()}
    assert recipe["precision"]["enum"] == [*get_args(get_type_hints(Recipe)["precision"])]
    assert recipe["optimizer"]["oneOf"][0]["enum"] == [*OPTIMIZERS]
    assert recipe["schedule"]["oneOf"][0]["enum"] == [*SCHEDULES]


def test_an_editor_is_offered_every_model_and_every_method() -> None:
    named, _ = MANIFEST["properties"]["models"]["items"]["oneOf"]
    assert named["examples"] == [*known_models(), *zoo_names()]
    listed = MANIFEST["$defs"]["listed_settings"]["items"]["oneOf"][1]["items"]
    assert listed["examples"] == [*known_methods()]


@pytest.mark.parametrize("name", [*known_models(), *zoo_names()])
def test_every_published_recipe_fits_the_schema(name: str) -> None:
    """An editor must not mark a recipe that the parser accepts."""
    of_zoo = zoo_model(name)
    model = of_zoo.model if of_zoo else known_models()[name]
    schema = {**MANIFEST["$defs"]["recipe"], "$defs": MANIFEST["$defs"]}
    recipe = {key: value for key, value in to_json(model.recipe).items() if value is not None}
    Draft202012Validator(schema).validate(recipe)


@pytest.mark.parametrize("path", sorted((ROOT / "manifests").glob("*.json")), ids=lambda p: p.stem)
def test_every_shipped_manifest_fits_its_schema(path: Path) -> None:
    document = json.loads(path.read_bytes())
    name = "node-check-v1" if document["schema"] == "bench/node-check/v1" else "manifest-v1"
    Draft202012Validator(SCHEMAS[name]).validate(document)


def test_a_manifest_may_name_its_schema() -> None:
    """An editor needs the field; it changes the bytes, and so the digest, and nothing else."""
    plain = made((), {})
    named = {"$schema": "manifest-v1.schema.json", **deepcopy(plain)}
    assert meaning(named) == meaning(plain)
    digests = {parse_manifest(json.dumps(each).encode(), "").digest for each in (named, plain)}
    assert len(digests) == 2
    check = {"$schema": "x", "schema": "bench/node-check/v1"}
    assert check_manifest.parse(json.dumps(check).encode(), "").name == "node-check"


# --- documents ------------------------------------------------------------------------------------------


def rows_of(page: str, heading: str) -> set[str]:
    """Return the names in the first column of the table below a heading."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    table = re.split(r"\n#", text)[0]
    firsts = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    return {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}


def test_the_documents_have_every_field_of_a_manifest_and_no_other() -> None:
    assert rows_of("docs/manifest.md", "## Fields") == MANIFEST["properties"].keys()
    model = MANIFEST["$defs"]["model"]["properties"]
    assert rows_of("docs/manifest.md", "### Fields of a model") == model.keys()
    assert rows_of("docs/guides/your-own-model.md", "### Recipe") == part("recipe").keys()
    timing = MANIFEST["properties"]["timing"]["properties"]
    assert rows_of("docs/manifest.md", "### Fields of `timing`") == timing.keys()


def test_the_documents_have_every_field_of_an_inner_object() -> None:
    guide = (ROOT / "docs/guides/your-own-model.md").read_text(encoding="utf-8")
    for name in (*OF_TYPES, "architecture"):
        for field in part(name):
            assert re.search(rf"[`\"]{field}[`\"]", guide), field
