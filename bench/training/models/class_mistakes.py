"""Find inputs that a class of transformers needs and bench does not provide.

In: a model that transformers can configure. Out: mistakes in bench's words, found in the class's signature,
before anything is built. Imports torch and transformers only when called, in the process of dry_build.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.base.errors import Mistake
from bench.training.models.model import Model
from bench.training.objectives.documents import ENDS, TOLD
from bench.training.vendor import transformers_inside

# Fields for the parts of a model of several models, one of which reads text.
TEXT_PARTS = frozenset({"text_config", "text_encoder"})
# Arguments of classes that take pictures as lists of patches, which differ in number from picture to picture.
PATCHES = frozenset({"pixel_attention_mask", "spatial_shapes"})


def several_models(model: Model, auto_class: Any, path: str) -> Iterator[Mistake]:
    """Yield a mistake if a type consists of several models that read different things.

    A class that takes no text, but pictures for instance, leaves the others out.
    """
    if not transformers_inside.is_made_of_models(model.family):
        parts = transformers_inside.parts_of(model.family)
        if model.recipe.aim.towers or not parts & TEXT_PARTS:
            return
        taken = transformers_inside.arguments_of(auto_class, model.family)
        if taken and "input_ids" not in taken:
            return
    found = f"{model.family} consists of several models, which bench does not train together"
    yield Mistake(f"{path}/architecture/model_type", found, "allowed: the type and the fields of one of them")


def class_mistakes(model: Model, auto_class: Any, path: str) -> Iterator[Mistake]:
    """Yield a mistake for each input that a type's class takes in another form than bench makes it up."""
    taken = transformers_inside.arguments_of(auto_class, model.family)
    if not taken:  # it has no class for the objective, which is a mistake in the recipe
        return
    parts = model.recipe.aim.parts(model.architecture, model.recipe)
    given = {part.name for part in parts} - {"labels"}
    if ENDS in given:
        given = given - {ENDS} | TOLD
    if taken.keys() >= PATCHES:
        yield _mistake(model, path, "takes pictures as lists of patches, and bench makes whole pictures")
    for name in sorted(given - taken.keys()):
        yield _mistake(model, path, f"takes no {name}, and bench gives it nothing else")


def _mistake(model: Model, path: str, found: str) -> Mistake:
    objective = model.recipe.objective
    place, allowed = f"{path}/architecture/model_type", f"allowed: another type, or not {objective}"
    return Mistake(place, f"the class of {model.family} for {objective} {found}", allowed)
