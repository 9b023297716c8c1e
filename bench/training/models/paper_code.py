"""The recipes as the paper's published code reads them, for comparisons like for like.

"pythia-1b@paper-code" in a manifest is Pythia-1B so changed. Only what can cost time or memory is
here, as far as it belongs to a recipe; decision 3 lists every difference, with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.training.models import Model, known_models

SUFFIX = "@paper-code"
SOURCE = "the paper's code: src/models/ of github.com/apoorvkh/academic-pretraining"
# It logs, saves and evaluates nothing while it measures.
SILENT: Mapping[str, None] = dict.fromkeys(
    ("log_every_steps", "save_every_steps", "eval_every_steps", "eval_samples")
)

ARCHITECTURE: Mapping[str, Mapping[str, Any]] = {
    "convnext": {"drop_path_rate": 0.0},  # the published checkpoint's, which is for fine-tuning
}


def find_model(name: str) -> Model | None:
    """A known model, or that model as the paper's code trains it."""
    model = known_models().get(name.removesuffix(SUFFIX))
    return as_in_paper_code(model) if model and name.endswith(SUFFIX) else model


def as_in_paper_code(model: Model) -> Model:
    architecture = {**model.architecture, **ARCHITECTURE.get(model.family, {})}
    changes: dict[str, Any] = {}
    if model.family == "gpt_neox":  # a sample of 2,049 tokens goes in whole
        changes["sequence_length"] = model.recipe.units_per_sample + 1
        architecture["max_position_embeddings"] += 1
    if model.family == "roberta":  # every token is a label
        changes["masked_fraction"] = 1.0
    recipe = replace(model.recipe, **{"source": SOURCE, **SILENT, **changes})
    return Model(model.name + SUFFIX, model.family, architecture, recipe)
