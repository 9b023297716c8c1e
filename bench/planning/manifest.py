"""Read a manifest, which says what a run measures.

In: a JSON file or its bytes. Out: a `Manifest`, or BadInput with every mistake at once. The file's
exact bytes are kept and hashed. Imports no torch; reads the manifest and the schemas shipped with bench.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from bench.base.errors import BadInput, Mistake, in_json, near, nearest
from bench.base.files import read_bounded
from bench.base.form_mistakes import line_breaks, written_json
from bench.base.frozen import dataclass
from bench.base.kinds_of_file import MANIFEST, MODEL_CONFIG
from bench.base.shipped_data import read_data
from bench.base.stamps import sha256
from bench.base.strict_json import from_json, pretty_json, tagged_infinity
from bench.records.trial import Proving, Timing
from bench.training.methods import conflict, known_methods, ordered
from bench.training.models import Model, known_models
from bench.training.models.own_models import override_recipe, remarks_about, resolve_inline
from bench.training.models.paper_code import SUFFIX as PAPER_CODE
from bench.training.models.paper_code import find_model
from bench.training.setting import Setting

FIRST_MINUTES = 60  # of a measurement for which nobody named a time
MAX_BYTES = 1 << 20  # manifests are written by hand: a larger file is no manifest
MAX_DEPTH = 32  # levels of nesting
READ_ELSEWHERE = ("architecture", "recipe")  # by own_models.py and recipes.py of bench/training/models

SettingName = Literal["naive", "free-lunch"]
Methods = Literal["exhaustive", "guided"] | tuple[SettingName | Setting, ...]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model to measure, with its own methods and micro-batch, or the manifest's if it has none."""

    model: Model
    methods: Methods
    micro_batch: int | None  # None: searched, from the largest that fits
    micro_batch_path: str  # path of `micro_batch` in the manifest, for messages
    data: str | None = None  # folder of data on the machine that measures; None: made-up data


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid manifest: the models to measure, the methods to try, and how long to measure."""

    data: bytes
    where: str  # its file, or the place that errors name for one without a file
    requests: tuple[ModelRequest, ...]
    gpus: int | None  # None: all GPUs of the node
    memory_cap_bytes: int | None
    budget_seconds: float | None
    trial_seconds: float
    seed: int
    timing: Timing
    prove: Proving | None  # None: estimates are not compared with real training
    floor: bool | None  # whether to measure floors; None: on GPUs
    gradient_check: bool | None  # whether to check the gradients of fastest settings; None: on GPUs
    image: str | None
    environment: str | None
    remarks: tuple[str, ...] = ()  # about fields that do not matter, for people

    @property
    def models(self) -> tuple[Model, ...]:
        """The models of all requests, in the order of the file."""
        return tuple(request.model for request in self.requests)

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest's bytes, by which runs of the same manifest are recognised."""
        return "sha256:" + sha256(self.data)


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest; BadInput names the file and the place of every mistake."""
    return parse_manifest(read_manifest(path), str(path))


def manifest_of_model(name: str) -> bytes:
    """Return the manifest that measures one known model as it is published, within an hour."""
    model = {"name": name.removesuffix(PAPER_CODE), "models": [name], "budget_minutes": FIRST_MINUTES}
    return pretty_json({"schema": "bench/manifest/v1"} | model)


def read_manifest(path: Path) -> bytes:
    """Return a manifest's bytes, with the code of its own modules; a model's name stands for its manifest."""
    from bench.planning.own_code import with_code  # imports what `bench verify` does not need

    return with_code(_read(path), path.parent, str(path))


def _read(path: Path) -> bytes:
    name = str(path)
    missing = not os.path.lexists(path)
    if missing and find_model(name) is not None:
        return manifest_of_model(name)
    if not missing and path.is_dir():
        own = (path / "config.json").exists()
        advice = MODEL_CONFIG.use(name) if own else "name a file in it"
        raise BadInput(f"is a folder, not {MANIFEST.words}", where=name, advice=advice)
    return read_bounded(
        path,
        MAX_BYTES,
        what="",
        too_large="larger than 1 MiB: this is no manifest",
        missing_advice=_instead_of(name) if missing else None,
        wanted=MANIFEST,
    )


def _instead_of(missing: str) -> str:
    """Return advice for a manifest that is missing: the model of almost this name, or where manifests are."""
    from bench.training.models.zoo import model_names  # not needed for a manifest that is there

    close = near(missing, model_names())
    return f"nearest model: {close[0]}" if close else "manifests/ has some to start from"


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest; raise BadInput with every mistake at once, and with `where` in front."""
    document = written_json(data, where, MANIFEST, tagged_infinity)
    if _depth(document) > MAX_DEPTH:
        raise BadInput(f"nested more than {MAX_DEPTH} levels deep", where=where)
    mistakes = list(schema_mistakes(document, "manifest-v1"))
    models: list[Model] = []
    if isinstance(document, dict):
        entries = document.get("models")
        models, model_mistakes = resolve_models(entries)
        mistakes += model_mistakes
        mistakes += _method_mistakes(document.get("methods"), "/methods")
        if "image" in document and "environment" in document:
            mistakes.append(Mistake("/environment", "stands beside an image", "allowed: one of both"))
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, dict):
                mistakes += _method_mistakes(entry.get("methods"), f"/models/{i}/methods")
    if not mistakes:  # a value with another mistake would be reported twice
        mistakes = [Mistake(place, "a text of several lines", "one line") for place in line_breaks(document)]
    if mistakes:
        mistakes.sort(key=lambda mistake: mistake.path)
        raise BadInput.of(mistakes, where)
    return _build(data, where, document, tuple(models))


def _build(data: bytes, where: str, document: Mapping[str, Any], models: tuple[Model, ...]) -> Manifest:
    cap = document.get("memory_cap_gib")
    budget = document.get("budget_minutes")
    return Manifest(
        data=data,
        where=where,
        requests=tuple(
            _request(model, document, i, entry if isinstance(entry, dict) else {})
            for i, (model, entry) in enumerate(zip(models, document["models"], strict=True))
        ),
        gpus=document.get("gpus"),
        memory_cap_bytes=None if cap is None else max(1, int(cap * 2**30)),
        budget_seconds=None if budget is None else budget * 60.0,
        trial_seconds=document.get("trial_minutes", 15) * 60.0,
        seed=document.get("seed", 0),
        timing=from_json(Timing, document.get("timing", {})),
        prove=from_json(Proving, document["prove"]) if "prove" in document else None,
        floor=document.get("floor"),
        gradient_check=document.get("gradient_check"),
        image=document.get("image"),
        environment=document.get("environment"),
        remarks=tuple(
            remark
            for i, entry in enumerate(document["models"])
            if isinstance(entry, dict) and "architecture" in entry
            for remark in remarks_about(entry["architecture"], f"/models/{i}")
        ),
    )


def _request(model: Model, document: Mapping[str, Any], i: int, entry: Mapping[str, Any]) -> ModelRequest:
    """Return the request for a model, whose own fields override those of the whole manifest."""
    micro_batch = entry.get("micro_batch", document.get("micro_batch", "auto"))
    return ModelRequest(
        model=model,
        methods=_methods(entry.get("methods", document.get("methods", "guided"))),
        micro_batch=None if micro_batch == "auto" else int(micro_batch),
        micro_batch_path=f"/models/{i}/micro_batch" if "micro_batch" in entry else "/micro_batch",
        data=entry.get("data"),
    )


def _methods(value: Any) -> Methods:
    if value in ("exhaustive", "guided"):
        return cast('Literal["exhaustive", "guided"]', value)
    entries: list[Any] = [value] if isinstance(value, str) else value
    return tuple(ordered(entry) if isinstance(entry, list) else entry for entry in entries)


def schema_mistakes(document: Any, name: str) -> Iterator[Mistake]:
    """Yield the mistakes that a schema of bench/data/schema finds in a document."""
    from jsonschema import Draft202012Validator  # slow to import

    schema = _form(read_data(f"schema/{name}.json"))
    for error in sorted(
        Draft202012Validator(schema).iter_errors(document), key=lambda e: list(map(str, e.path))
    ):
        yield from _mistakes_of(error)


def _form(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without the fields that are described for editors, and judged where they are read.

    The readers of architectures and recipes know more than a schema can say, and would report twice.
    """
    parts = schema.get("$defs", {})
    read_elsewhere = {
        name: {"type": "object", "description": parts[name]["description"]}
        for name in READ_ELSEWHERE
        if name in parts
    }
    return {**schema, "$defs": {**parts, **read_elsewhere}}


def _mistakes_of(error: Any) -> Iterator[Mistake]:
    path = "/" + "/".join(map(str, error.absolute_path))
    if error.validator == "oneOf" and error.context:
        deeper = [e for e in error.context if len(e.absolute_path) > len(error.absolute_path)]
        objects = [e for e in error.context if e.validator in ("required", "additionalProperties")]
        if nearest_form := deeper or objects:  # report every mistake of the form that the value is nearest to
            form = nearest_form[0].schema_path[0]
            for inner in (e for e in error.context if e.schema_path[0] == form):
                yield from _mistakes_of(inner)
            return
        yield Mistake(path, f"{in_json(error.instance)} does not fit", _allowed(error.schema))
    elif error.validator == "additionalProperties":
        known = error.schema["properties"]
        for name in sorted(error.instance.keys() - known.keys()):
            yield Mistake(f"{path.rstrip('/')}/{name}", "no such field", nearest(name, known))
    elif error.validator == "required":
        missing = sorted(set(error.validator_value) - error.instance.keys())
        # jsonschema reports each missing field at the object: report it once, at its own place.
        name = next(m for m in missing if repr(m) in error.message)
        yield Mistake(f"{path.rstrip('/')}/{name}", "missing", _allowed(error.schema["properties"][name]))
    else:
        yield Mistake(path, f"{in_json(error.instance)} does not fit", _allowed(error.schema))


def _allowed(schema: Mapping[str, Any]) -> str:
    """Return the values that a schema allows, in a few words."""
    sentence = schema.get("description", "").partition(". ")[0].removesuffix(".")
    summary = sentence[:1].lower() + sentence[1:]
    if summary and "oneOf" in schema:
        return f"allowed: {summary}"
    if "oneOf" in schema:
        return "allowed: " + " or ".join(_allowed(o).removeprefix("allowed: ") for o in schema["oneOf"])
    if "const" in schema:
        return f"allowed: {in_json(schema['const'])}"
    if "enum" in schema:
        return "allowed: " + ", ".join(schema["enum"])
    if schema.get("type") == "object" and "properties" in schema:
        return f"allowed: an object with {', '.join(schema['properties'])}"
    words = {
        "number": "a number",
        "integer": "a whole number",
        "string": "a text",
        "boolean": "true or false",
        "array": "a list",
        "object": "an object",
    }
    text = words.get(str(schema.get("type")), "another value")
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "minItems": "with at least",
        "maxItems": "with at most",
        "pattern": "matching",
    }
    limits = [f"{word} {schema[key]}" for key, word in bounds.items() if key in schema]
    described = f": {summary}" if summary and schema.get("type") in ("array", "object") else ""
    return f"allowed: {text} {' and '.join(limits)}".rstrip() + described


def resolve_models(entries: Any) -> tuple[list[Model], list[Mistake]]:
    """Return the models of a manifest's "models", in their order, and the mistakes in the other entries."""
    models: dict[str, Model] = {}
    mistakes: list[Mistake] = []
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        path = f"/models/{i}"
        match _resolve_model(entry, path):
            case Model() as model if model.name in models:
                mistakes.append(Mistake(path, f'"{model.name}" stands twice', "allowed: each name once"))
            case Model() as model:
                models[model.name] = model
            case list() as of_entry:
                mistakes += of_entry
    return list(models.values()), mistakes


def _resolve_model(entry: Any, path: str) -> Model | list[Mistake]:
    """Return a model, or the mistakes in its entry except wrong types, which the schema reports."""
    if isinstance(entry, str):
        model = find_model(entry)
        return model if model else [_unknown_model(entry, path)]
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return []
    if "architecture" in entry:
        return resolve_inline(entry, path) if isinstance(entry["architecture"], dict) else []
    model = find_model(entry["name"])
    if model is None:
        return [_unknown_model(entry["name"], f"{path}/name")]
    recipe = entry.get("recipe", {})
    return override_recipe(model, recipe, f"{path}/recipe") if isinstance(recipe, dict) else []


def _unknown_model(name: str, path: str) -> Mistake:
    from bench.training.models.zoo import model_names

    plain, at, _ = name.partition("@")
    if at and plain in known_models():
        return Mistake(path, f"{in_json(name)} is not a reading of {plain}", f"allowed: {plain + PAPER_CODE}")
    look = "bench plan --list-models tells about them; docs/guides/your-own-model.md: any other"
    hint = nearest(name, model_names(), look)
    return Mistake(path, f"{in_json(name)} is not a model here", hint)


def _method_mistakes(entries: Any, where: str) -> Iterator[Mistake]:
    """Yield the unknown methods, and those that exclude each other, in the settings of a "methods" field."""
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, list) or not all(isinstance(name, str) for name in entry):
            continue
        path = f"{where}/{i}"
        unknown = [(j, name) for j, name in enumerate(entry) if name not in known_methods()]
        for j, name in unknown:
            yield Mistake(
                f"{path}/{j}",
                f"{in_json(name)} is not a method here",
                nearest(name, known_methods(), "docs/methods.md describes them"),
            )
        if not unknown and (why := conflict(ordered(entry))):
            yield Mistake(path, why, "allowed: methods that go together")


def _depth(value: Any) -> int:
    """Count levels of nesting without recursion, for which a document may be nested too deeply."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        item, level = stack.pop()
        deepest = max(deepest, level)
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        stack += [(child, level + 1) for child in children]
    return deepest
