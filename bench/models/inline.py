"""Your own model from a manifest: an architecture in Hugging Face's words, and a recipe.

The five families bring formulas for it; any other `model_type` that transformers knows is built as it
is, and its parameters and arithmetic are counted from the built module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from bench.codec import DecodeError, union_from_json
from bench.errors import Mistake, listed, nearest
from bench.models import Family, Flops, Model, Optimizer, Recipe, Schedule, families
from bench.models.generic import TransformersFamily

# What a config.json carries beside the architecture; it changes nothing that is measured.
IGNORED = {
    "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "_name_or_path",
    "bos_token_id", "eos_token_id", "label2id", "tokenizer_class", "model_type", "_attn_implementation",
}  # fmt: skip
DEFAULT_OPTIMIZER = Optimizer("adamw", 3e-4, 0.9, 0.95, 1e-8, 0.1)
DEFAULT_SCHEDULE = Schedule("cosine", warmup_steps=0, final_ratio=0.1)
REQUIRED = ("objective", "batch_size", "steps", "precision")
SHAPES = {
    "causal-lm": "sequence_length",
    "masked-lm": "sequence_length",
    "image-classification": "image_size",
}


def family_of(model: Model) -> Family:
    known = families().get(model.family)
    return known if known is not None else TransformersFamily(model.family)


def flops_of(model: Model) -> Flops:
    """By the family's formula; without one, counted on the built module, which imports torch."""
    family = family_of(model)
    return (
        family.counted_flops(model) if isinstance(family, TransformersFamily) else family.forward_flops(model)
    )


def override_recipe(model: Model, overrides: Mapping[str, Any], path: str) -> Model | list[Mistake]:
    """A known model, trained otherwise in what `overrides` says."""
    fields, mistakes = _decode_fields(model.recipe, overrides, path)
    if mistakes:
        return mistakes
    changed = dataclasses.replace(model, recipe=dataclasses.replace(model.recipe, **fields))
    return list(_senseless(changed, path.removesuffix("/recipe"))) or changed


def resolve_inline(entry: Mapping[str, Any], path: str) -> Model | list[Mistake]:
    architecture, recipe = entry["architecture"], entry.get("recipe", {})
    kind = architecture.get("model_type")
    if not isinstance(kind, str):
        return [
            Mistake(
                f"{path}/architecture/model_type",
                "missing",
                f"allowed: {listed(families())}, or another of transformers",
            )
        ]
    mistakes = [*_architecture_mistakes(kind, architecture, f"{path}/architecture")]
    if not isinstance(recipe, dict):
        return mistakes
    blank = Recipe("causal-lm", 1, 1, "fp32", DEFAULT_OPTIMIZER, DEFAULT_SCHEDULE)
    fields, more = _decode_fields(blank, recipe, f"{path}/recipe")
    mistakes += more
    mistakes += [
        Mistake(f"{path}/recipe/{name}", "missing", _allowed(name)) for name in REQUIRED if name not in recipe
    ]
    if mistakes:
        return mistakes
    if fields["objective"] == "masked-lm":
        fields.setdefault("masked_fraction", 0.15)
    model = Model(entry["name"], kind, _relevant(kind, architecture), dataclasses.replace(blank, **fields))
    return list(_senseless(model, path)) or model


# The architecture


def _relevant(kind: str, architecture: Mapping[str, Any]) -> dict[str, Any]:
    family = families().get(kind)
    given = {key: value for key, value in architecture.items() if key not in IGNORED}
    if "id2label" in given:
        given.setdefault("num_labels", len(given.pop("id2label")))
    return {**family.defaults(), **given} if family else given


def _architecture_mistakes(kind: str, architecture: Mapping[str, Any], path: str) -> Iterator[Mistake]:
    family = families().get(kind)
    if family is None:
        yield from _unknown_type(kind, path)
        return
    defaults = family.defaults()
    for name, value in architecture.items():
        if name in IGNORED or name == "id2label":
            continue
        if name not in defaults:
            yield Mistake(f"{path}/{name}", f"no such field of {kind}", nearest(name, defaults))
        elif not _like(value, defaults[name]):
            yield Mistake(
                f"{path}/{name}", f"{value!r:.40} does not fit", f"allowed: like {defaults[name]!r}"
            )


def _like(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int):
        return isinstance(value, int) and (value > 0 or default <= 0)
    if isinstance(default, float):
        return isinstance(value, int | float) and value >= 0
    if isinstance(default, list | tuple):
        return isinstance(value, list) and bool(value) and all(_like(item, default[0]) for item in value)
    return isinstance(value, type(default)) or default is None


def _unknown_type(kind: str, path: str) -> Iterator[Mistake]:
    """Whether transformers has it, by looking at its folders: importing it would take seconds."""
    package = find_spec("transformers")
    if package is None or package.origin is None:
        return
    folders = {entry.name for entry in Path(package.origin).with_name("models").iterdir() if entry.is_dir()}
    if kind.replace("-", "_") not in folders:
        yield Mistake(
            f"{path}/model_type", f'"{kind:.40}" is not known to transformers', nearest(kind, folders)
        )


# The recipe


def _decode_fields(base: Any, given: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[Mistake]]:
    """Each field on its own, so that every mistake is told; nested objects over the base's own."""
    hints = get_type_hints(type(base))
    fields: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for name, value in given.items():
        place = f"{path}/{name}"
        if name not in hints:
            mistakes.append(Mistake(place, "no such field", nearest(name, hints)))
        elif dataclasses.is_dataclass(hints[name]) and isinstance(value, dict):
            inner, more = _decode_fields(getattr(base, name), value, place)
            mistakes += more
            fields[name] = dataclasses.replace(getattr(base, name), **inner)
        else:
            try:
                fields[name] = union_from_json(hints[name], value)
            except DecodeError:
                mistakes.append(Mistake(place, f"{value!r:.40} does not fit", _allowed(name)))
                continue
            if isinstance(value, int | float) and not isinstance(value, bool) and value < _least(name):
                mistakes.append(Mistake(place, f"{value} is too small", f"allowed: at least {_least(name)}"))
    return fields, mistakes


def _least(name: str) -> int:
    """Counts and sizes start at one; rates and fractions, and the length of a warm-up, at nothing."""
    counted = ("batch_size", "steps", "sequence_length", "image_size", "eval_samples")
    return 1 if name in counted or name.startswith(("log_", "save_", "eval_")) else 0


def _allowed(name: str) -> str:
    hints = get_type_hints(Recipe) | get_type_hints(Optimizer)
    text = str(hints.get(name, "")).replace("typing.Literal", "").replace(" | None", "")
    words = {"<class 'int'>": "a whole number", "<class 'float'>": "a number", "int": "a whole number",
             "float": "a number", "<class 'str'>": "a text"}  # fmt: skip
    return f"allowed: {words.get(text, text.strip('[]') or 'another value')}"


def _senseless(model: Model, path: str) -> Iterator[Mistake]:
    """What is well formed and cannot be trained."""
    recipe = model.recipe
    shape = SHAPES[recipe.objective]
    if getattr(recipe, shape) is None:
        yield Mistake(f"{path}/recipe/{shape}", "missing", f"allowed: a whole number, for {recipe.objective}")
        return
    family = families().get(model.family)
    size = "num_labels" if shape == "image_size" else "vocab_size"
    if family is None and not isinstance(model.architecture.get(size), int):
        yield Mistake(f"{path}/architecture/{size}", "missing", "allowed: a whole number")
    if family is not None and recipe.objective not in family.objectives:
        words = ", ".join(family.objectives)
        yield Mistake(
            f"{path}/recipe/objective",
            f"{model.family} does not train {recipe.objective}",
            f"allowed: {words}",
        )
    elif family is not None:
        yield from family.mistakes(model, path)
