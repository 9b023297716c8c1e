"""Known models with the recipes of the paper's published code, for comparisons like for like.

"pythia-1b@paper-code" in a manifest is Pythia-1B with the changes in this file: the differences of recipes
that can cost time or memory. docs/adr/0003 lists all differences with reasons. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.training.models import Model, known_models

SUFFIX = "@paper-code"
SOURCE = "the paper's code: src/models/ of github.com/apoorvkh/academic-pretraining"
# The paper's code logs, saves and evaluates nothing while it measures.
SILENT: Mapping[str, None] = dict.fromkeys(
    ("log_every_steps", "save_every_steps", "eval_every_steps", "eval_samples")
)

ARCHITECTURE: Mapping[str, Mapping[str, Any]] = {
    "convnext": {"drop_path_rate": 0.0},  # rate of the published checkpoint, which is for fine-tuning
}


def find_model(name: str) -> Model | None:
    """Return the model of this name, which may end with "@paper-code"; None if no model has it."""
    if model := known_models().get(name.removesuffix(SUFFIX)):
        return as_in_paper_code(model) if name.endswith(SUFFIX) else model
    from bench.training.models.zoo import zoo_model

    of_zoo = zoo_model(name)
    return of_zoo.model if of_zoo else None


def as_in_paper_code(model: Model) -> Model:
    """Return the model as the paper's code trains it, named with the suffix."""
    architecture = {**model.architecture, **ARCHITECTURE.get(model.family, {})}
    changes: dict[str, Any] = {}
    if model.family == "gpt_neox":  # the code does not shorten a sample of 2,049 tokens
        changes["sequence_length"] = model.recipe.units_per_sample + 1
        architecture["max_position_embeddings"] += 1
    if model.family == "roberta":  # the code uses every token as a label
        changes["masked_fraction"] = 1.0
    recipe = replace(model.recipe, **{"source": SOURCE, **SILENT, **changes})
    return Model(model.name + SUFFIX, model.family, architecture, recipe)
