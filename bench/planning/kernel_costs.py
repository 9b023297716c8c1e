"""The cost of missing compiled kernels: the settings that a plan loses, and how much slower others are.

Pure; measured figures are shipped data. Nothing here knows which kernel a model uses: each method is asked
whether it can train the model on the target with and without the kernel's packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from bench.base.kernel_list import MODULES, modules_of
from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json
from bench.planning.manifest import Manifest
from bench.planning.plan import SettingPlan, make_plan
from bench.records.text import figures
from bench.training.methods import Target, known_methods
from bench.training.models import Counted, Model
from bench.training.models.own_module import CODE
from bench.training.vendor.transformers_source import calls_package

LostMethods = frozenset[tuple[str, frozenset[str]]]  # names of models, each with the methods that it loses
NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """How much slower a model was measured without a wheel: a row of kernel_costs.json."""

    wheel: str
    model: str
    gpu: str
    gpus: int
    times: float  # seconds of a step without the wheel, divided by those of the fastest setting
    fastest: str  # bundle in results/ that has the fastest setting
    without: str  # bundle in results/ that has the fastest setting without the wheel


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """The contents of kernel_costs.json, which benchmarks/kernel_costs.py writes from results/."""

    rows: tuple[MeasuredCost, ...]
    schema: Literal["bench/kernel-costs/v1"]
    source: str
    dated: str  # day of the comparison


@dataclass(frozen=True, slots=True)
class ModelWithout:
    """The remaining plan of a model without some wheels."""

    model: str
    settings_left: int
    falls_back_to: str | None  # the first setting left; None: none, or the same as with the wheels
    measured: MeasuredCost | None  # None also where the plan falls back to another setting than was measured


@dataclass(frozen=True, slots=True)
class KernelCost:
    """The losses of models on a target that lacks one or more of `wheels`."""

    wheels: tuple[str, ...]
    methods: tuple[str, ...]  # methods that cannot be used without the wheels
    models: tuple[ModelWithout, ...]
    # Models whose code, their own or that of transformers, calls a package of these wheels.
    callers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Say in one line which wheels are missing, and what each model loses without them."""
        by_effect: dict[str, list[str]] = {}
        for each in self.models:
            by_effect.setdefault(_effect(each), []).append(each.model)
        effects = [f"{effect} ({', '.join(names)})" for effect, names in by_effect.items()]
        if self.callers:
            effects.append(f"called by code of {', '.join(self.callers)}, how much slower was never measured")
        methods = f", for the method{'s' if len(self.methods) > 1 else ''} {', '.join(self.methods)}"
        return f"without {' or '.join(self.wheels)}{methods if self.methods else ''}: {'; '.join(effects)}"


def _effect(without: ModelWithout) -> str:
    """Describe the loss of a model, from measured steps if there are any."""
    if not without.settings_left:
        return "no setting is left that fits"
    if without.falls_back_to:
        return f"falls back to {without.falls_back_to}, how much slower was never measured"
    if (row := without.measured) is None:
        return "how much slower was never measured"
    slower = f"a step takes {figures(row.times, 4)} times as long" if row.times > 1 else "no slower"
    return f"{slower}, as measured on {row.gpus} x {row.gpu}"


@cache
def measured_costs() -> tuple[MeasuredCost, ...]:
    """Return what bench/data/kernel_costs.json says was measured without a kernel."""
    return from_json(MeasuredCosts, read_data("kernel_costs.json")).rows


def kernel_costs(
    manifest: Manifest, target: Target, wheels: Sequence[str], counted: Mapping[str, Counted] | None = None
) -> list[KernelCost]:
    """Return the losses of a manifest's models on a target without these wheels.

    Wheels with equal losses share an entry; a wheel that no model misses has none.
    """
    by_lost: dict[tuple[LostMethods, tuple[str, ...]], list[str]] = {}
    for wheel in wheels:
        lost = {each.model.name: lost_methods(each.model, target, [wheel]) for each in manifest.requests}
        callers = (each.model for each in manifest.requests if target.device == "cuda")
        called = tuple(model.name for model in callers if not lost[model.name] and calls(model, wheel))
        effect = frozenset((name, methods) for name, methods in lost.items() if methods), called
        by_lost.setdefault(effect, []).append(wheel)
    by_lost.pop((frozenset(), ()), None)
    losers = {name for lost_of_models, _ in by_lost for name, _ in lost_of_models}
    whole = _cells(manifest, losers, _with(target), counted)
    costs = []
    for (lost_of_models, called), alike in by_lost.items():
        lacking = replace(_with(target), lacks=modules_of(alike))
        without = _cells(manifest, dict(lost_of_models).keys(), lacking, counted)
        models = tuple(_models_without(tuple(alike), dict(lost_of_models), target.gpus, whole, without))
        methods = {method for _, lost_of_model in lost_of_models for method in lost_of_model}
        ordered = tuple(method for method in known_methods() if method in methods)
        costs += [KernelCost(tuple(alike), ordered, models, called)] if models or called else []
    return costs


def _cells(
    manifest: Manifest, names: Collection[str], target: Target, counted: Mapping[str, Counted] | None
) -> tuple[SettingPlan, ...]:
    requests = tuple(request for request in manifest.requests if request.model.name in names)
    return make_plan(replace(manifest, requests=requests), target, counted).cells if requests else ()


def _models_without(
    wheels: tuple[str, ...],
    lost: Mapping[str, frozenset[str]],
    gpus: int,
    whole: Sequence[SettingPlan],
    without: Sequence[SettingPlan],
) -> Iterator[ModelWithout]:
    """Yield the remaining plan of each model whose plan with all wheels uses a method that is lost."""
    losers = (cell.model.name for cell in whole if lost.get(cell.model.name, NONE) & set(cell.setting))
    for name in dict.fromkeys(losers):
        before = [cell.label for cell in whole if cell.model.name == name]
        left = [cell.label for cell in without if cell.model.name == name]
        falls_back_to = left[0] if left and left[0] != before[0] else None
        measured = None if falls_back_to or not left else _measured(wheels, name, gpus)
        yield ModelWithout(name, len(left), falls_back_to, measured)


def lost_methods(model: Model, target: Target, wheels: Iterable[str]) -> frozenset[str]:
    """Return the methods that can train a model on a target with these wheels, and cannot without them."""
    there = _with(target)
    without = replace(there, lacks=modules_of(wheels))
    return frozenset(
        name
        for name, method in known_methods().items()
        if method.why_not(model, there) is None and method.why_not(model, without) is not None
    )


def calls(model: Model, wheel: str) -> bool:
    """Whether a model's own code, or that of transformers, calls a wheel's package.

    The code of transformers counts only if it is installed here.
    """
    own = "\n".join(model.architecture.get(CODE, ()))
    imported = (re.search(rf"\b(?:import|from) {package}\b", own) for package in MODULES[wheel])
    model_type = model.architecture.get("model_type", model.family)
    return any(imported) or any(calls_package(model_type, package) for package in MODULES[wheel])


def _with(target: Target) -> Target:
    """Return the target as a machine that has all kernels."""
    return replace(target, elsewhere=True, lacks=())


def _measured(wheels: tuple[str, ...], model: str, gpus: int) -> MeasuredCost | None:
    """Return the measured gains of a model by the wheels, on the number of GPUs of the target."""
    rows = (row for row in measured_costs() if (row.model, row.gpus) == (model, gpus) and row.wheel in wheels)
    return max(rows, key=lambda row: row.times, default=None)
