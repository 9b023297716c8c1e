"""Models that a manifest describes itself, and known models whose recipe it changes.

In: JSON objects of a manifest; an architecture is a Hugging Face configuration with its `model_type`.
Out: a Model, or all mistakes at once, each with its place. Pure: imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, get_args

from bench.base.errors import Mistake, in_json, nearest
from bench.training.models import (
    Family,
    Model,
    Recipe,
    families,
    family_of,
    known_models,
    module_families,
)
from bench.training.models.model import INERT, TOKENS
from bench.training.models.recipes import in_samples, new_recipe, number_mistakes, read_onto, recipe_mistakes
from bench.training.objectives import ObjectiveName, objective_of
from bench.training.objectives.objective import with_value
from bench.training.vendor import transformers_source

CHANGED = "; changed in the manifest: "  # between the source of a recipe and fields that are not from it
TOKEN_ENDINGS = ("_id", "_index")  # of names whose number is a token's, and no size
LARGEST = 2**31  # largest whole number in an architecture


def resolve_inline(obj: Mapping[str, Any], path: str) -> Model | list[Mistake]:
    """Return a manifest's own model, or all mistakes in it."""
    from bench.training.models.generic import TransformersFamily

    name, given = obj["name"], _with_sizes(obj["architecture"], obj.get("recipe"))
    mistakes = []
    if name in known_models():
        mistakes.append(Mistake(f"{path}/name", f'"{name}" is a model here', "allowed: a name of your own"))
    family = _family(given, f"{path}/architecture/model_type")
    if isinstance(family, Mistake):  # whether the recipe must name an objective is then unknown
        _, in_recipe = new_recipe(TransformersFamily(""), given, obj.get("recipe", {}), f"{path}/recipe")
        objective_missing = (f"{path}/recipe/objective", "missing")
        return [*mistakes, family, *(m for m in in_recipe if (m.path, m.found) != objective_missing)]
    in_architecture = list(_architecture_mistakes(family, given, f"{path}/architecture"))
    recipe, in_recipe = new_recipe(family, given, obj.get("recipe", {}), f"{path}/recipe")
    architecture = family.kept_fields(given)
    if in_architecture and not in_recipe:
        in_recipe += recipe_mistakes(family, recipe, f"{path}/recipe")
    elif in_recipe and not in_architecture:
        in_architecture += _mistakes_without_recipe(family, architecture, obj.get("recipe"), path)
    if in_architecture or in_recipe:
        return [*mistakes, *in_architecture, *in_recipe]
    model = Model(name, family.name, architecture, recipe)
    return [*mistakes, *mistakes_of_meaning(model, path)] or model


def remarks_about(given: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield a line for code that is run, and for each field of a family file's architecture nothing reads.

    For other architectures, dry_build.py finds these fields.
    """
    from bench.training.models import own_module

    if own_module.MODULE in given and own_module.CODE in given:
        file, digest = own_module.code_file(given), own_module.code_digest(given)
        yield f"{path}/architecture/module: {file}, sha256 {digest}, is run where models are built"
    if family := families().get(given.get("model_type", "")):
        for key in given:
            if _is_unread(family, key, given):
                yield unread_field(family.name, key, path)


def unread_field(model_type: str, field: str, path: str) -> str:
    """Return the remark about a field that nothing reads."""
    if field == "auto_map":
        return (
            f"{path}/architecture/auto_map: its code is not run; transformers' own {model_type} is measured"
        )
    return f"{path}/architecture/{field}: nothing in transformers' {model_type} reads this field"


def meant_field(field: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """Return the known field for which a given one probably stands; None if it stands for none.

    Its name resembles that of a field that was not given, or is a size's name in other configurations of
    transformers ("n_embd" for "hidden_size"), and its value would change that field, which `known` has.
    """
    import difflib  # slow to import, and only an unknown field needs it

    value, missing = given[field], known.keys() - given.keys() - INERT
    if not field.isidentifier():
        return None
    similar = difflib.get_close_matches(field, missing, n=3, cutoff=0.7)
    if type(value) is int and not field.endswith(TOKEN_ENDINGS):
        similar += sorted(transformers_source.other_names(field) & missing)
    changed = (name for name in similar if type(known[name]) is type(value) and known[name] != value)
    return next(changed, None)


def _is_unread(family: Family, key: str, given: Mapping[str, Any]) -> bool:
    """Whether a field can be left out of an architecture of this family, and is no misspelt one."""
    if key in family.defaults or key in INERT | TOKENS or family.name not in transformers_source.types():
        return False
    if transformers_source.reads_field(family.name, key) or transformers_source.declares_field(
        family.name, key
    ):
        return False
    return meant_field(key, given, family.defaults) is None


def _with_sizes(given: Mapping[str, Any], recipe: Any) -> Mapping[str, Any]:
    """Return an architecture with the sizes of made-up data that its type has by default.

    Published configurations leave some of them out.
    """
    objective = recipe.get("objective") if isinstance(recipe, Mapping) else None
    model_type = given.get("model_type")
    if objective not in get_args(ObjectiveName) or not isinstance(model_type, str):
        return given
    for path, value in objective_of(objective).defaults_of_types.get(model_type, {}).items():
        given = with_value(given, path, value)
    return given


def _mistakes_without_recipe(
    family: Family, architecture: Mapping[str, Any], recipe: Any, path: str
) -> Iterator[Mistake]:
    """Yield mistakes in an architecture that do not depend on its recipe, which has mistakes itself."""
    from bench.training.models.generic import TransformersFamily

    if isinstance(family, TransformersFamily):
        objective = recipe.get("objective") if isinstance(recipe, Mapping) else None
        if objective in family.objectives:
            yield from family.architecture_mistakes(architecture, objective, path)
        return
    stand_in = next(model.recipe for model in known_models().values() if model.family == family.name)
    for mistake in family.mistakes(Model("", family.name, architecture, stand_in), path):
        if mistake.path.startswith(f"{path}/architecture/"):
            yield mistake


def override_recipe(model: Model, overrides: Mapping[str, Any], path: str) -> Model | list[Mistake]:
    """Return a known model with fields of its recipe changed, as its source then says; or the mistakes."""
    if not overrides:
        return model
    base = asdict(model.recipe)
    changed_fields = sorted(overrides)
    overrides, in_tokens = in_samples(overrides, base, path)
    if in_tokens:
        return in_tokens
    if "schedule" not in overrides and type(overrides.get("steps")) is int:
        base["schedule"]["warmup_steps"] = min(base["schedule"]["warmup_steps"], overrides["steps"])
    recipe, mistakes = read_onto(Recipe, overrides, path, base)
    if mistakes:
        return mistakes
    source = f"{recipe.source}{CHANGED}{', '.join(changed_fields)}"
    changed = replace(model, recipe=replace(recipe, source=source))
    return mistakes_of_meaning(changed, path.removesuffix("/recipe")) or changed


def mistakes_of_meaning(model: Model, path: str) -> list[Mistake]:
    """Find values of a model that have the right type but cannot work."""
    family = family_of(model)
    return [*recipe_mistakes(family, model.recipe, f"{path}/recipe"), *family.mistakes(model, path)]


def _family(given: Mapping[str, Any], path: str) -> Family | Mistake:
    """Return the family of an architecture, or the mistake in its `model_type`."""
    from bench.training.models.generic import TransformersFamily

    for module_family in module_families().values():
        if module_family.describes(given):
            return module_family
    model_type = given.get("model_type")
    if not isinstance(model_type, str):
        found = "missing" if model_type is None else f"{in_json(model_type)} is not a text"
        own = [*families(), *(name for name, one in module_families().items() if one.defaults)]
        return Mistake(path, found, f"allowed: {', '.join(sorted(own))}; or another type of transformers")
    if family := families().get(model_type):
        return family
    types = transformers_source.types()
    if types and model_type not in types:
        found = f"{in_json(model_type)} is not a type of transformers"
        look = "a type whose code is your own: docs/guides/your-own-model.md"
        return Mistake(path, found, nearest(model_type, [*types, *module_families()], look))
    return TransformersFamily(model_type)


def _architecture_mistakes(family: Family, given: Mapping[str, Any], path: str) -> Iterator[Mistake]:
    defaults = family.defaults
    if not defaults:  # transformers judges the fields when it builds the model
        return
    for key, value in given.items():
        if key in defaults:
            yield from _field_mistakes(key, value, defaults[key], f"{path}/{key}")
        elif key not in INERT | TOKENS and not _is_unread(family, key, given):
            yield Mistake(f"{path}/{key}", "no such field", nearest(key, defaults))


def _field_mistakes(key: str, value: Any, default: Any, path: str) -> Iterator[Mistake]:
    """Compare a value with the default's type, and with limits that follow from the field's name."""
    least = 0 if key.endswith("_id") else 1
    if isinstance(default, list):
        if not isinstance(value, list) or not value:
            yield Mistake(path, f"{in_json(value)} is not a list", "allowed: a list of whole numbers")
            return
        for i, item in enumerate(value):
            yield from number_mistakes(int, item, 1, LARGEST, f"{path}/{i}")
    elif isinstance(default, bool) or (isinstance(default, str) and default != "auto"):
        if type(value) is not type(default):
            words = "true or false" if isinstance(default, bool) else "a text"
            yield Mistake(path, f"{in_json(value)} is not {words}", f"allowed: {words}")
    elif value != default:
        share = any(word in key for word in ("dropout", "_rate", "_pct"))
        kind = float if isinstance(default, float) else int
        low, high = (0, 1 if share else 10**9) if kind is float else (least, LARGEST)
        yield from number_mistakes(kind, value, low, high, path)
