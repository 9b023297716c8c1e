"""Models by name, families by type, and what is known about a model without building it.

A family is one file of this folder with one object `FAMILY`; a model is one value in its `MODELS`. Types are
defined in model.py and exported here. Planning uses this folder without torch, which only workers import.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from bench.training.models.footprint import Counted as Counted
from bench.training.models.model import LEAST_CAPABILITY as LEAST_CAPABILITY
from bench.training.models.model import Family as Family
from bench.training.models.model import Flops as Flops
from bench.training.models.model import Half as Half
from bench.training.models.model import Lora as Lora
from bench.training.models.model import Model as Model
from bench.training.models.model import Parts as Parts
from bench.training.models.model import Precision as Precision
from bench.training.models.model import Recipe as Recipe
from bench.training.models.model import installed as installed

if TYPE_CHECKING:
    from bench.training.models.module_family import ModuleFamily


@cache
def _files() -> tuple[tuple[Family, tuple[Model, ...]], ...]:
    """Return the family and the models of each family file, in the order in which models are listed.

    The files are imported when this is called, because most commands need no models.
    """
    from bench.training.models import convnext, gpt_neox, mamba, roberta, vit

    return tuple((file.FAMILY, file.MODELS) for file in (gpt_neox, roberta, mamba, convnext, vit))


@cache
def families() -> Mapping[str, Family]:
    """Return the families that have a file in this folder, by transformers' `model_type`."""
    return {family.name: family for family, _ in _files()}


@cache
def module_families() -> Mapping[str, ModuleFamily]:
    """Return the families without formulas whose modules do not come from transformers, by name."""
    from bench.training.models import dit, own_module, timm_family

    return {family.name: family for family in (timm_family.FAMILY, own_module.FAMILY, dit.FAMILY)}


@cache
def known_models() -> Mapping[str, Model]:
    """Return every model that a manifest may name, in the order of the family files."""
    return {model.name: model for _, models in _files() for model in models}


def family_of(model: Model) -> Family:
    """Return the family of a model; by default, one whose models transformers builds."""
    if model.recipe.lora is None:
        return _plain_family(model.family)
    from bench.training.models import adapters

    return adapters.FamilyWithAdapters(_plain_family(model.family))


def words_of(model: Model) -> int:
    """Return the number of words of a model's vocabulary; 0 if it has none."""
    return int(family_of(model).complete(model).get("vocab_size", 0))


def _plain_family(name: str) -> Family:
    if family := families().get(name) or module_families().get(name):
        return family
    from bench.training.models import generic, mamba1, mamba2
    from bench.training.vendor.transformers_inside import MAMBA1_MIXERS, MAMBA2_MIXERS

    if name in MAMBA1_MIXERS:
        return mamba1.Mamba1Mixers(name)
    return mamba2.Mamba2Mixers(name) if name in MAMBA2_MIXERS else generic.TransformersFamily(name)


def has_formulas(model: Model) -> bool:
    """Whether formulas give the model's parameters, operations and memory, so that it need not be built."""
    return model.family in families() and model.recipe.lora is None


def parameters_of(model: Model) -> int | None:
    """Return the number of trainable parameters by formula; None if only the built module can tell."""
    try:
        return family_of(model).parameters(model).total
    except LookupError:
        return None


def counts_by_formula(model: Model) -> Counted | None:
    """Return parameters and operations by the family's formulas; None if the family has no formulas."""
    family = family_of(model)
    try:
        return Counted(
            family.parameters(model),
            family.forward_flops(model),
            family.head_flops(model),
            shapes=family.operation_shapes(model),
        )
    except LookupError:
        return None


def counts_of(model: Model) -> Counted:
    """Return parameters and operations, by formula or by building the model (in a worker only)."""
    if (counted := counts_by_formula(model)) is not None:
        return counted
    from bench.training.models.counted_operations import counted_work  # slow to import
    from bench.training.models.generic import TransformersFamily  # slow to import

    family = family_of(model)
    return counted_work(model, family if isinstance(family, TransformersFamily) else None)


def uses_all_weights(model: Model) -> bool:
    """Whether every weight is known to affect the loss."""
    return family_of(model).uses_all_weights
