"""Decide which trials a script of one file can repeat, and say why it cannot repeat the others.

A method whose reason is in its own `not_exported_to` is refused with it; one that is neither there nor in
`EXPRESSED` is refused as unknown here, so that no method is ever left out silently. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bench.export.standalone.data import SAMPLES
from bench.export.standalone.model import MASKED_HEAD, head_of
from bench.records.trial import Trial
from bench.training.methods import method_named
from bench.training.models import families, module_families, own_module
from bench.training.models.footprint import lowers_weights
from bench.training.models.mixed_precisions import mixes_precisions
from bench.training.vendor import transformers_inside, transformers_source

KIND: Final = "standalone"
EXPRESSED = frozenset(
    (
        "tf32", "kernels", "masked-head", "half-weights", "fused-optimizer", "compile", "compile-blocks",
        "checkpointing", "zero-1", "zero-2", "zero-3", "fsdp-2", "fsdp-3",
    )
)  # fmt: skip


def plain(trial: Trial) -> Trial:
    """Return the trial without those methods of bench's own code that only make it faster."""
    return replace(trial, setting=tuple(name for name in trial.setting if not _is_left_out(name)))


def _is_left_out(name: str) -> bool:
    method = method_named(name)
    return method.only_faster and KIND in method.not_exported_to


def refuse(trial: Trial) -> str | None:
    """Return every reason why one file cannot train as measured, in one sentence; None if it can."""
    return "; ".join(_reasons(trial)) or None


def _reasons(trial: Trial) -> Iterator[str]:
    yield from _of_methods(trial)
    yield from _of_recipe(trial)
    yield from _of_model(trial)
    if trial.data:
        yield "it was measured on data of a folder, and the script would train on made-up data"


def _of_methods(trial: Trial) -> Iterator[str]:
    setting = trial.setting
    for name in setting:
        if reason := method_named(name).not_exported_to.get(KIND):
            yield reason
        elif name not in EXPRESSED:
            yield f"the script has no code for {name}"
    if "kernels" in setting and trial.model.family in transformers_inside.MAMBA_SSM:
        yield "kernels: bench loads mamba-ssm in a way of its own, without which the plain scan could run"
    if MASKED_HEAD in setting and head_of(trial) is None:
        yield f"{MASKED_HEAD}: the head of {trial.model.family} is not one layer that the script could call"


def _of_recipe(trial: Trial) -> Iterator[str]:
    recipe = trial.model.recipe
    if recipe.objective not in SAMPLES:
        yield f"the loss of {recipe.objective} is code of bench, and would fill the file"
    if reason := recipe.optimizer.not_exported_to.get(KIND):
        yield reason
    if recipe.precision == "fp8":
        yield "the products in fp8 are code of bench, and bf16 would be another precision"
    if recipe.lora:
        yield "the adapters' places and random weights are bench's choice"
    if recipe.documents:
        yield "the attention that keeps documents of a sample apart is code of bench"


def _of_model(trial: Trial) -> Iterator[str]:
    family, recipe = trial.model.family, trial.model.recipe
    lowered = lowers_weights(trial.model, trial.setting)
    if lowered and mixes_precisions(trial.model):
        yield f"the code of {family} mixes precisions, and code of bench runs it with half-precision weights"
    if family in module_families():
        if family == own_module.FAMILY.name:
            yield "the model's own code is in no package that the script could import"
        elif family != "timm":
            yield f"the modules of {family} are in no package that the script could import"
    elif family not in families():
        if not transformers_source.types():
            yield f"what the code of {family} needs is read from transformers, which is not installed here"
        elif lowered and transformers_source.has_position_tables(family):
            yield f"{family} adds tables of positions in fp32, and code of bench gives them half precision"
        elif transformers_source.has_experts(family) and (recipe.half or recipe.optimizer.updates_matrices):
            yield f"the experts of {family} in half precision, or under Muon, run by code of bench"
