"""Read a recipe from a manifest: fill in what it leaves out, and name every mistake with its place.

In: JSON objects. Out: a Recipe, or None, and the mistakes. Pure.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bench.base.errors import Mistake, in_json, nearest
from bench.training.models.model import Family, Lora, Recipe
from bench.training.objectives import Objective, ObjectiveName, known_objectives, objective_of
from bench.training.objectives.documents import Documents
from bench.training.objectives.objective import value_at
from bench.training.optimizers import OPTIMIZERS, Adam
from bench.training.schedules import SCHEDULES, DecaySchedule, WarmupStableDecay

# Smallest and largest allowed value of each field; the smallest is tiny if a field must only be positive.
LIMITS: Mapping[str, tuple[float, float]] = {
    "batch_size": (1, 2**20),
    "steps": (1, 2**40),
    "sequence_length": (1, 2**24),
    "target_length": (1, 2**24),
    "image_size": (1, 2**14),
    "audio_seconds": (1, 3600),
    "masked_fraction": (1e-6, 1),
    "clip_norm": (1e-12, 10**12),
    "log_every_steps": (1, 2**40),
    "save_every_steps": (1, 2**40),
    "eval_every_steps": (1, 2**40),
    "eval_samples": (1, 2**40),
    "learning_rate": (1e-12, 1000),
    "beta1": (0, 0.999999),
    "beta2": (0, 0.999999999),
    "epsilon": (1e-30, 1),
    "weight_decay": (0, 1000),
    "warmup_steps": (0, 2**40),
    "final_ratio": (0, 1),
    "decay_share": (1e-6, 1),
    "decay_steps": (1, 2**40),
    "momentum": (0, 0.999999),
    "ns_steps": (1, 20),
    "adamw_learning_rate": (1e-12, 1000),
    "rank": (1, 2**16),
    "alpha": (1e-6, 10**6),
    "dropout": (0, 0.999999),
    "mean_tokens": (2, 2**24),
    "separator": (0, 2**31 - 1),
}
# Fields that are an object of one of several kinds: its field "name" tells which, and a text is a name alone.
KINDS: Mapping[str, Mapping[str, type[Any]]] = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES}
# Defaults of a recipe. Of these only the kind of optimizer affects speed.
DEFAULTS = {
    "optimizer": asdict(Adam("adamw", 3e-4, 0.9, 0.95, 1e-8, 0.1)),
    "schedule": asdict(DecaySchedule("cosine", 0, 0.1)),
    "clip_norm": 1.0,
    "source": "the manifest",
}
TARGETS = 'allowed: "all-linear", or a list of names of linear layers, such as ["q_proj", "v_proj"]'
REQUIRED = ("batch_size", "steps", "precision")


# Fields that state a number of samples or steps in tokens, and the field that each of them stands for.
IN_TOKENS = {"batch_tokens": "batch_size", "tokens": "steps"}
# Fields that state a number of steps together: how often training reads a data set, and the set's samples.
IN_EPOCHS = ("epochs", "samples")


def in_samples(
    obj: Mapping[str, Any], base: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], list[Mistake]]:
    """Return a recipe with its batch in samples and its length in steps, and the mistakes in these fields.

    "batch_tokens" are the tokens of a step, "tokens" those of the whole training; "epochs" says how often it
    reads a data set of this number of "samples". Steps are rounded up. `base` has the fields that the recipe
    leaves out. A field that cannot be converted becomes 1, so that it is not reported as missing, too.
    """
    given, mistakes = _from_tokens(obj, base, path)
    if not any(field in obj for field in IN_EPOCHS):
        return given, mistakes
    in_epochs = list(_epoch_mistakes(obj, path))
    for field in IN_EPOCHS:
        given.pop(field, None)
    batch: Any = given.get("batch_size", base.get("batch_size"))
    valid = not in_epochs and type(batch) is int and batch > 0
    if "steps" not in given:
        given["steps"] = max(1, math.ceil(obj["epochs"] * obj["samples"] / batch)) if valid else 1
    return given, mistakes + in_epochs


def _epoch_mistakes(obj: Mapping[str, Any], path: str) -> Iterator[Mistake]:
    epochs, samples = IN_EPOCHS
    for field, other, allowed in (
        (epochs, samples, "how often each sample is read"),
        (samples, epochs, "how many samples the data set has"),
    ):
        if field not in obj:
            yield Mistake(f"{path}/{field}", f"missing beside {other}", f"allowed: a number, {allowed}")
    for field in ("steps", "tokens"):
        if field in obj:
            found = f"means the same as {epochs} with {samples}"
            yield Mistake(f"{path}/{field}", found, "allowed: one of the two")
    if epochs in obj:
        yield from number_mistakes(float, obj[epochs], 1e-6, 1e6, f"{path}/{epochs}")
    if samples in obj:
        yield from number_mistakes(int, obj[samples], 1, 2**50, f"{path}/{samples}")


def _from_tokens(
    obj: Mapping[str, Any], base: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], list[Mistake]]:
    """Convert the fields of a recipe that are given in tokens into samples; return them and the mistakes."""
    given = {key: value for key, value in obj.items() if key not in IN_TOKENS}
    stated = {field: obj[field] for field in IN_TOKENS if field in obj}
    mistakes = []
    for field, value in stated.items():
        if IN_TOKENS[field] in obj:
            found = f"means the same as {IN_TOKENS[field]}"
            mistakes.append(Mistake(f"{path}/{field}", found, "allowed: one of the two"))
        mistakes += number_mistakes(float, value, 1, 2**60, f"{path}/{field}")
    length = obj.get("sequence_length", base.get("sequence_length"))
    target = obj.get("target_length", base.get("target_length"))
    if type(length) is int and type(target) is int:
        length += target
    aim = _known(obj.get("objective", base.get("objective")))
    if stated and aim and aim.towers:
        found, allowed = f"{aim.name} counts {aim.unit}", "allowed: batch_size and steps"
        mistakes.append(Mistake(f"{path}/{min(stated)}", found, allowed))
    elif stated and length is None:
        mistakes.append(
            Mistake(f"{path}/{min(stated)}", "needs a sequence_length", "allowed with tokens only")
        )
    if mistakes or type(length) is not int or length < 1:
        return {**{IN_TOKENS[field]: 1 for field in stated}, **given}, mistakes
    if "batch_tokens" in stated:
        samples, rest = divmod(stated["batch_tokens"], length)
        given["batch_size"] = max(1, int(samples))
        if rest or samples < 1:
            found = f"{in_json(stated['batch_tokens'])} is no multiple of the {length} tokens of a sample"
            mistakes.append(Mistake(f"{path}/batch_tokens", found, f"allowed: a multiple of {length}"))
    if "tokens" in stated:
        batch: Any = given.get("batch_size", base.get("batch_size"))
        valid = type(batch) is int and batch > 0
        given["steps"] = math.ceil(stated["tokens"] / (batch * length)) if valid else 1
    return given, mistakes


def new_recipe(
    family: Family, architecture: Mapping[str, Any], obj: Any, path: str
) -> tuple[Recipe, list[Mistake]]:
    """Return the recipe of a manifest's own model, with defaults, and its mistakes; with any, no recipe."""
    if not isinstance(obj, Mapping):
        return read_onto(Recipe, obj, path, DEFAULTS)
    obj, in_tokens = in_samples(obj, {}, path)
    base: dict[str, Any] = {key: dict(v) if isinstance(v, dict) else v for key, v in DEFAULTS.items()}
    if len(family.objectives) == 1:
        base["objective"] = family.objectives[0]
    aim = _known(obj.get("objective", base.get("objective")))
    side = _image_side(architecture, aim)
    if side is not None and (aim is None or "image_size" in aim.sizes):
        base["image_size"] = side
    base |= aim.defaults if aim else {}
    if type(steps := obj.get("steps")) is int:
        base["schedule"]["warmup_steps"] = max(0, steps) // 100
    missing = [key for key in (*REQUIRED, *(aim.sizes if aim else ())) if key not in {**base, **obj}]
    if "objective" not in {**base, **obj}:
        missing.append("objective")
    recipe, mistakes = read_onto(Recipe, obj, path, {**dict.fromkeys(missing), **base})
    return recipe, [
        Mistake(f"{path}/{key}", "missing", _allowed(key)) for key in missing
    ] + in_tokens + mistakes


def _image_side(architecture: Mapping[str, Any], aim: Objective | None) -> int | None:
    """Return the side of an architecture's square images: 224 or [224, 224]; None if it states none."""
    size = value_at(architecture, "vision_config/image_size" if aim and aim.towers else "image_size")
    sides = size if isinstance(size, list) and len(size) == 2 else [size]
    first = sides[0]
    return first if isinstance(first, int) and sides.count(first) == len(sides) else None


def _known(name: Any) -> Objective | None:
    return objective_of(name) if name in get_args(ObjectiveName) else None


def recipe_mistakes(family: Family, recipe: Recipe, path: str) -> Iterator[Mistake]:
    """Yield values of the right type that contradict the family or each other."""
    if recipe.objective not in family.objectives:
        allowed = f"allowed for {family.name}: {', '.join(family.objectives)}"
        yield Mistake(f"{path}/objective", f'"{recipe.objective}" does not fit', allowed)
        return
    needed = recipe.aim.sizes
    for size in needed:
        if getattr(recipe, size) is None:
            yield Mistake(f"{path}/{size}", "missing", _allowed(size))
    for size in dict.fromkeys(size for aim in known_objectives().values() for size in aim.sizes):
        if size not in needed and getattr(recipe, size) is not None:
            found = f"means nothing for {recipe.objective}"
            yield Mistake(f"{path}/{size}", found, f"allowed: {', '.join(needed) or 'no size'}")
    if recipe.documents and not recipe.aim.packs_documents:
        yield Mistake(f"{path}/documents", f"means nothing for {recipe.objective}", "allowed: null")
    elif recipe.documents and (reason := family.why_no_documents()):
        yield Mistake(f"{path}/documents", reason, "allowed: null")
    if recipe.schedule.warmup_steps > recipe.steps:
        found = f"{recipe.schedule.warmup_steps} is more than the {recipe.steps} steps"
        yield Mistake(f"{path}/schedule/warmup_steps", found, f"allowed: at most {recipe.steps}")
    elif isinstance(recipe.schedule, WarmupStableDecay):
        yield from _decay_mistakes(recipe.schedule, recipe.steps, f"{path}/schedule")


def _decay_mistakes(schedule: WarmupStableDecay, steps: int, path: str) -> Iterator[Mistake]:
    """Yield mistakes of a decay that is stated twice, or that would begin before the warm-up ends."""
    if schedule.decay_share is not None and schedule.decay_steps is not None:
        yield Mistake(f"{path}/decay_share", "means the same as decay_steps", "allowed: one of the two")
    left = steps - schedule.warmup_steps
    if (decaying := schedule.decaying_steps(steps)) > left:
        field = "decay_share" if schedule.decay_steps is None else "decay_steps"
        found = f"means {decaying} steps of decay; after the warm-up there are {left}"
        yield Mistake(f"{path}/{field}", found, "shorten the decay or warmup_steps")


def _allowed(field: str) -> str:
    """Return the allowed values of a field of Recipe, for people."""
    if field in LIMITS:
        return "allowed: a number from {} to {}".format(*LIMITS[field])
    return "allowed: " + ", ".join(get_args(get_type_hints(Recipe)[field]))


def read_onto(cls: Any, obj: Any, path: str, base: Mapping[str, Any]) -> tuple[Any, list[Mistake]]:
    """Make a dataclass of `base` and the fields in the JSON value `obj`, or None; return it and mistakes."""
    if not isinstance(obj, Mapping):
        return None, [Mistake(path, f"{in_json(obj)} is not an object", f"allowed: {', '.join(base)}")]
    kinds = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    mistakes = [
        Mistake(f"{path}/{key}", "no such field", nearest(key, names)) for key in obj if key not in names
    ]
    values: dict[str, Any] = {}
    for name in names:
        if name in obj or name in KINDS or isinstance(base.get(name), Mapping):
            inner = base.get(name) or {}
            values[name], more = _value(name, kinds[name], obj.get(name, {}), f"{path}/{name}", inner)
            mistakes += more
        elif name in base:
            values[name] = base[name]
    return (None if mistakes else cls(**values)), mistakes


def _read_kind(
    kinds: Mapping[str, type[Any]], obj: Any, path: str, base: Mapping[str, Any]
) -> tuple[Any, list[Mistake]]:
    """Read an object whose field "name" tells its kind; `base` has the fields that are left out."""
    if isinstance(obj, str):
        obj = {"name": obj}
    if not isinstance(obj, Mapping):
        return read_onto(kinds[base["name"]], obj, path, base)
    name = obj.get("name", base["name"])
    if not isinstance(name, str) or name not in kinds:
        found = f"{in_json(name)} does not fit"
        return None, [Mistake(f"{path}/name", found, nearest(str(name), kinds))]
    names = [field.name for field in fields(kinds[name])]
    foreign = {key: other for key in obj if key not in names if (other := _kind_with(key, kinds))}
    allowed = f"allowed for {name}: {', '.join(names)}"
    mistakes = [
        Mistake(f"{path}/{key}", f"is a field of {other}, not of {name}", allowed)
        for key, other in foreign.items()
    ]
    own = {key: value for key, value in obj.items() if key not in foreign}
    value, more = read_onto(kinds[name], own, path, base)
    return (None if mistakes else value), mistakes + more


def _kind_with(field_name: str, kinds: Mapping[str, type[Any]]) -> str | None:
    """Return the first kind that has a field of this name."""
    return next(
        (name for name, kind in kinds.items() if field_name in {field.name for field in fields(kind)}), None
    )


def _value(name: str, kind: Any, value: Any, path: str, base: Any) -> tuple[Any, list[Mistake]]:
    """Convert a JSON value to the type of the field `name`; return it and the mistakes in it."""
    if name in KINDS:
        return _read_kind(KINDS[name], value, path, base)
    if name == "targets":
        return _targets(value, path)
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return None, []
    kind = options[0]
    if kind is Lora:
        return _lora(value, path, base)
    if kind is Documents:
        return _documents(value, path, base)
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value, []
        return None, [Mistake(path, f"{in_json(value)} does not fit", nearest(str(value), get_args(kind)))]
    if kind is bool:
        mistake = Mistake(path, f"{in_json(value)} is not true or false", "allowed: true, false")
        return value, [] if isinstance(value, bool) else [mistake]
    if kind is str:
        if isinstance(value, str):
            return value, []
        return None, [Mistake(path, f"{in_json(value)} is not a text", "allowed: a text")]
    mistakes = list(number_mistakes(kind, value, *LIMITS[name], path))
    return value if mistakes else kind(value), mistakes  # "clip_norm": 1 becomes 1.0, as bundles have it


def _lora(obj: Any, path: str, base: Mapping[str, Any]) -> tuple[Any, list[Mistake]]:
    """Read the adapters of a recipe: rank and targets are required, alpha is twice the rank by default."""
    names = [field.name for field in fields(Lora)]
    if not isinstance(obj, Mapping):
        allowed = f"allowed: an object with {', '.join(names)}, or null"
        return None, [Mistake(path, f"{in_json(obj)} is not an object", allowed)]
    base = {"dropout": 0.0, **base}
    if type(rank := obj.get("rank")) is int and "alpha" not in base:
        base["alpha"] = 2.0 * rank
    required = {"rank": "allowed: a whole number, at least 1", "targets": TARGETS}
    missing = [name for name in required if name not in {**base, **obj}]
    lora, mistakes = read_onto(Lora, obj, path, {**dict.fromkeys(("alpha", *missing)), **base})
    return lora, [Mistake(f"{path}/{name}", "missing", required[name]) for name in missing] + mistakes


def _documents(obj: Any, path: str, base: Mapping[str, Any]) -> tuple[Any, list[Mistake]]:
    """Read how documents are packed: their mean length is required."""
    missing = isinstance(obj, Mapping) and "mean_tokens" not in {**base, **obj}
    required = {"mean_tokens": None} if missing else {}
    documents, mistakes = read_onto(Documents, obj, path, {"separator": None, **base, **required})
    if missing:
        mistakes = [Mistake(f"{path}/mean_tokens", "missing", _allowed("mean_tokens")), *mistakes]
    return documents, mistakes


def _targets(value: Any, path: str) -> tuple[Any, list[Mistake]]:
    if value == "all-linear":
        return value, []
    if not isinstance(value, (list, tuple)) or not value:
        found = "an empty list" if value in ([], ()) else f"{in_json(value)} is not a list"
        return None, [Mistake(path, found, TARGETS)]
    mistakes = []
    for i, name in enumerate(value):
        if not isinstance(name, str) or not name:
            mistakes.append(Mistake(f"{path}/{i}", f"{in_json(name)} is not a name", "allowed: a text"))
        elif name in value[:i]:
            mistakes.append(Mistake(f"{path}/{i}", f"{in_json(name)} stands twice", "allowed: once"))
    return tuple(value), mistakes


def number_mistakes(kind: type, value: Any, low: float, high: float, path: str) -> Iterator[Mistake]:
    """Yield a mistake unless the value is an int or float (`kind`) from `low` to `high`."""
    words = "a whole number" if kind is int else "a number"
    allowed = f"allowed: {words} from {low} to {high}"
    if type(value) is not int and (kind is int or type(value) is not float):
        yield Mistake(path, f"{in_json(value)} is not {words}", allowed)
    elif not low <= value <= high:
        yield Mistake(path, f"{value} is {'less than ' if value < low else 'more than '}allowed", allowed)
