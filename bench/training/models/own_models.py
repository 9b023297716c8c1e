"""Models that a manifest describes itself, and recipes that it changes.

An architecture is a Hugging Face configuration with its `model_type`; every mistake in it or in the
recipe is named at once, with its place. Nothing here imports torch or transformers.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bench.base.errors import Mistake, in_json, listed, nearest
from bench.training.models import (
    Family,
    Flops,
    Model,
    Objective,
    Optimizer,
    Recipe,
    Schedule,
    families,
    known_models,
    transformers_source,
)
from bench.training.models.generic import TransformersFamily, counted

__all__ = ["TransformersFamily", "counted", "family_of", "flops_of", "override_recipe", "resolve_inline"]

# In a published configuration, but silent on how the model trains.
INERT = frozenset({
    "architectures", "model_type", "_name_or_path", "name_or_path", "torch_dtype", "dtype", "tokenizer_class",
    "transformers_version", "use_cache", "classifier_dropout", "output_attentions", "output_hidden_states",
    "torchscript", "finetuning_task", "problem_type", "id2label", "label2id",
})  # fmt: skip
TOKENS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})  # no family here asks, save for defaults
LARGEST = 2**31
# Least and most. What must be more than nothing begins where no recipe goes.
LIMITS: Mapping[str, tuple[float, float]] = {
    "batch_size": (1, 2**20), "steps": (1, 2**40), "sequence_length": (1, 2**24), "image_size": (1, 2**14),
    "masked_fraction": (1e-6, 1), "clip_norm": (1e-12, 10**12), "log_every_steps": (1, 2**40),
    "save_every_steps": (1, 2**40), "eval_every_steps": (1, 2**40), "eval_samples": (1, 2**40),
    "learning_rate": (1e-12, 1000), "beta1": (0, 0.999999), "beta2": (0, 0.999999999),
    "epsilon": (1e-30, 1), "weight_decay": (0, 1000), "warmup_steps": (0, 2**40), "final_ratio": (0, 1),
}  # fmt: skip
# What a recipe takes that leaves it out: it decides nothing about speed but the kind of optimizer.
USUAL = {
    "optimizer": asdict(Optimizer("adamw", 3e-4, 0.9, 0.95, 1e-8, 0.1)),
    "schedule": asdict(Schedule("cosine", 0, 0.1)),
    "clip_norm": 1.0,
    "source": "the manifest",
}
REQUIRED = ("batch_size", "steps", "precision")


def family_of(model: Model) -> Family:
    return families().get(model.family) or TransformersFamily(model.family)


def flops_of(model: Model) -> Flops:
    """By formula where there is one, else counted: in the worker alone."""
    return family_of(model).forward_flops(model) if model.family in families() else counted(model).flops


def parameters_of(model: Model) -> int | None:
    """By formula; None where only the built module could tell."""
    try:
        return family_of(model).parameters(model).total
    except LookupError:
        return None


def resolve_inline(obj: Mapping[str, Any], path: str) -> Model | list[Mistake]:
    """A manifest's own model, or everything that is wrong with it."""
    name, given = obj["name"], obj["architecture"]
    mistakes = []
    if name in known_models():
        mistakes.append(Mistake(f"{path}/name", f'"{name}" is a model here', "allowed: a name of your own"))
    found = _family(given.get("model_type"), f"{path}/architecture/model_type")
    if isinstance(found, Mistake):  # its objectives are not known: whether the recipe needs to name one
        _, of_recipe = _new_recipe(TransformersFamily(""), given, obj.get("recipe", {}), f"{path}/recipe")
        needless = (f"{path}/recipe/objective", "missing")
        return [*mistakes, found, *(m for m in of_recipe if (m.path, m.found) != needless)]
    of_architecture = list(_architecture_mistakes(found, given, f"{path}/architecture"))
    recipe, of_recipe = _new_recipe(found, given, obj.get("recipe", {}), f"{path}/recipe")
    architecture = _architecture(found, given)
    if of_architecture and not of_recipe:
        of_recipe += _recipe_mistakes(found, recipe, f"{path}/recipe")
    elif of_recipe and not of_architecture:
        of_architecture += _alone(found, architecture, obj.get("recipe"), path)
    if of_architecture or of_recipe:
        return [*mistakes, *of_architecture, *of_recipe]
    model = Model(name, found.name, architecture, recipe)
    return [*mistakes, *_senseless(model, path)] or model


def _architecture(family: Family, given: Mapping[str, Any]) -> Mapping[str, Any]:
    defaults = family.defaults()
    silent = INERT | TOKENS if defaults else INERT
    kept = {key: value for key, value in given.items() if key in defaults or key not in silent}
    if isinstance(labels := given.get("id2label"), dict):  # how published configurations count them
        kept.setdefault("num_labels", len(labels))
    return {**defaults, **kept}


def _alone(family: Family, architecture: Mapping[str, Any], recipe: Any, path: str) -> Iterator[Mistake]:
    """What is wrong with an architecture whatever its recipe, which is wrong itself."""
    if isinstance(family, TransformersFamily):
        objective = recipe.get("objective") if isinstance(recipe, Mapping) else None
        if objective in family.objectives:
            yield from family.architecture_mistakes(architecture, objective, path)
        return
    usual = next(model.recipe for model in known_models().values() if model.family == family.name)
    found = family.mistakes(Model("", family.name, architecture, usual), path)
    yield from (one for one in found if one.path.startswith(f"{path}/architecture/"))


def override_recipe(model: Model, overrides: Mapping[str, Any], path: str) -> Model | list[Mistake]:
    """A known model with some of its recipe changed; the source says so."""
    if not overrides:
        return model
    base = asdict(model.recipe)
    if "schedule" not in overrides and type(overrides.get("steps")) is int:
        base["schedule"]["warmup_steps"] = min(base["schedule"]["warmup_steps"], overrides["steps"])
    recipe, mistakes = _read(Recipe, overrides, path, base)
    if mistakes:
        return mistakes
    source = f"{recipe.source}; changed in the manifest: {', '.join(sorted(overrides))}"
    changed = replace(model, recipe=replace(recipe, source=source))
    return _senseless(changed, path.removesuffix("/recipe")) or changed


def _senseless(model: Model, path: str) -> list[Mistake]:
    """What is of the right type and cannot work."""
    family = family_of(model)
    return [*_recipe_mistakes(family, model.recipe, f"{path}/recipe"), *family.mistakes(model, path)]


def _family(model_type: Any, path: str) -> Family | Mistake:
    if not isinstance(model_type, str):
        found = "missing" if model_type is None else f"{in_json(model_type)} is not a text"
        return Mistake(path, found, f"allowed: {listed(families())}, or another type of transformers")
    if family := families().get(model_type):
        return family
    known = transformers_source.types()
    if known and model_type not in known:
        found = f"{in_json(model_type)} is not a type of transformers"
        return Mistake(path, found, nearest(model_type, known))
    return TransformersFamily(model_type)


def _architecture_mistakes(family: Family, given: Mapping[str, Any], path: str) -> Iterator[Mistake]:
    defaults = family.defaults()
    if not defaults:  # transformers judges it when it is built
        return
    for key, value in given.items():
        if key in defaults:
            yield from _field_mistakes(key, value, defaults[key], f"{path}/{key}")
        elif key not in INERT | TOKENS:
            yield Mistake(f"{path}/{key}", "no such field", nearest(key, defaults))


def _field_mistakes(key: str, value: Any, default: Any, path: str) -> Iterator[Mistake]:
    """Against the default: its type, and what makes sense for such a name."""
    least = 0 if key.endswith("_id") else 1
    if isinstance(default, list):
        if not isinstance(value, list) or not value:
            yield Mistake(path, f"{in_json(value)} is not a list", "allowed: a list of whole numbers")
            return
        for i, item in enumerate(value):
            yield from _number_mistakes(int, item, 1, LARGEST, f"{path}/{i}")
    elif isinstance(default, bool) or (isinstance(default, str) and default != "auto"):
        if type(value) is not type(default):
            words = "true or false" if isinstance(default, bool) else "a text"
            yield Mistake(path, f"{in_json(value)} is not {words}", f"allowed: {words}")
    elif value != default:
        share = any(word in key for word in ("dropout", "_rate", "_pct"))
        kind = float if isinstance(default, float) else int
        low, high = (0, 1 if share else 10**9) if kind is float else (least, LARGEST)
        yield from _number_mistakes(kind, value, low, high, path)


def _number_mistakes(kind: type, value: Any, low: float, high: float, path: str) -> Iterator[Mistake]:
    words = "a whole number" if kind is int else "a number"
    allowed = f"allowed: {words} from {low} to {high}"
    if type(value) is not int and (kind is int or type(value) is not float):
        yield Mistake(path, f"{in_json(value)} is not {words}", allowed)
    elif not low <= value <= high:
        yield Mistake(path, f"{value} is {'less than ' if value < low else 'more than '}allowed", allowed)


# Recipes


def _new_recipe(
    family: Family, given: Mapping[str, Any], obj: Any, path: str
) -> tuple[Recipe, list[Mistake]]:
    if not isinstance(obj, Mapping):
        return _read(Recipe, obj, path, USUAL)
    base: dict[str, Any] = {key: dict(v) if isinstance(v, dict) else v for key, v in USUAL.items()}
    if len(family.objectives) == 1:
        base["objective"] = family.objectives[0]
    if isinstance(given.get("image_size"), int):
        base["image_size"] = given["image_size"]
    objective = obj.get("objective", base.get("objective"))
    if objective == "masked-lm":
        base["masked_fraction"] = 0.15
    if type(steps := obj.get("steps")) is int:
        base["schedule"]["warmup_steps"] = max(0, steps) // 100
    missing = [key for key in (*REQUIRED, *_size_field(objective)) if key not in {**base, **obj}]
    if "objective" not in {**base, **obj}:
        missing.append("objective")
    recipe, mistakes = _read(Recipe, obj, path, {**dict.fromkeys(missing), **base})
    return recipe, [Mistake(f"{path}/{key}", "missing", _allowed(key)) for key in missing] + mistakes


def _size_field(objective: Any) -> tuple[str, ...]:
    if objective not in get_args(Objective):
        return ()
    return ("image_size",) if objective == "image-classification" else ("sequence_length",)


def _recipe_mistakes(family: Family, recipe: Recipe, path: str) -> Iterator[Mistake]:
    if recipe.objective not in family.objectives:
        allowed = f"allowed for {family.name}: {', '.join(family.objectives)}"
        yield Mistake(f"{path}/objective", f'"{recipe.objective}" does not fit', allowed)
        return
    needed = _size_field(recipe.objective)[0]
    other = "sequence_length" if needed == "image_size" else "image_size"
    if getattr(recipe, needed) is None:
        yield Mistake(f"{path}/{needed}", "missing", _allowed(needed))
    if getattr(recipe, other) is not None:
        yield Mistake(f"{path}/{other}", f"means nothing for {recipe.objective}", f"allowed: {needed}")
    if recipe.objective == "masked-lm" and recipe.masked_fraction is None:
        yield Mistake(f"{path}/masked_fraction", "missing", _allowed("masked_fraction"))
    if recipe.schedule.warmup_steps > recipe.steps:
        found = f"{recipe.schedule.warmup_steps} is more than the {recipe.steps} steps"
        yield Mistake(f"{path}/schedule/warmup_steps", found, f"allowed: at most {recipe.steps}")


def _allowed(field: str) -> str:
    if field in LIMITS:
        return "allowed: a number from {} to {}".format(*LIMITS[field])
    return "allowed: " + ", ".join(get_args(get_type_hints(Recipe)[field]))


def _read(cls: Any, obj: Any, path: str, base: Mapping[str, Any]) -> tuple[Any, list[Mistake]]:
    """`base` with what `obj` sets, as a `cls`; or None and every mistake."""
    if cls is Optimizer and isinstance(obj, str):
        obj = {"name": obj}
    if not isinstance(obj, Mapping):
        return None, [Mistake(path, f"{in_json(obj)} is not an object", f"allowed: {', '.join(base)}")]
    kinds = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    mistakes = [
        Mistake(f"{path}/{key}", "no such field", nearest(key, names))
        for key in obj if key not in names
    ]  # fmt: skip
    values: dict[str, Any] = {}
    for name in names:
        if name in obj or is_dataclass(kinds[name]):
            inner = base.get(name) or {}
            values[name], more = _value(name, kinds[name], obj.get(name, {}), f"{path}/{name}", inner)
            mistakes += more
        elif name in base:
            values[name] = base[name]
    return (None if mistakes else cls(**values)), mistakes


def _value(name: str, kind: Any, value: Any, path: str, base: Any) -> tuple[Any, list[Mistake]]:
    if is_dataclass(kind):
        return _read(kind, value, path, base)
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return None, []
    kind = options[0]
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value, []
        return None, [Mistake(path, f"{in_json(value)} does not fit", nearest(str(value), get_args(kind)))]
    if kind is str:
        found = (
            []
            if isinstance(value, str)
            else [Mistake(path, f"{in_json(value)} is not a text", "allowed: a text")]
        )
        return value, found
    mistakes = list(_number_mistakes(kind, value, *LIMITS[name], path))
    return value if mistakes else kind(value), mistakes  # "clip_norm": 1 is the 1.0 that a bundle will have
