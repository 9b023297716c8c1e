"""Models that people train today, by name: published architectures with sourced recipes, as data.

A model is one file of bench/data/zoo. Its recipe's source says what is published and what is ours. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from bench.base.frozen import dataclass
from bench.base.shipped_data import DATA, read_data
from bench.training.models import known_models
from bench.training.models.model import Model


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model of the zoo, and published facts about it."""

    model: Model
    architecture_source: str
    parameters: float  # as published, often rounded
    parameters_source: str
    cost: str | None  # what training the original took, as published
    notes: str | None  # how bench's training differs from the original's


@cache
def zoo_names() -> tuple[str, ...]:
    """Return the names of the models in bench/data/zoo, sorted; a manifest may name them."""
    return tuple(sorted(file.stem for file in (DATA / "zoo").glob("*.json")))


def model_names() -> tuple[str, ...]:
    """Return the name of every model that a manifest may name, those of the family files first."""
    return (*known_models(), *zoo_names())


@cache
def zoo_model(name: str) -> ZooModel | None:
    """Return the zoo's model of this name, or None."""
    from bench.training.models.own_models import resolve_inline  # not needed for the names alone

    if name not in zoo_names():
        return None
    data: Mapping[str, Any] = read_data(f"zoo/{name}.json")
    described = {"name": name, "architecture": data["architecture"], "recipe": data["recipe"]}
    model = resolve_inline(described, name)
    if not isinstance(model, Model):
        raise ValueError(f"bench/data/zoo/{name}.json: {model}")
    return ZooModel(
        model,
        data["architecture_source"],
        data["parameters"],
        data["parameters_source"],
        data.get("cost"),
        data.get("notes"),
    )
