"""Plan a run of a manifest on target devices: every trial with its predicted memory, and what is skipped.

Pure: no I/O, no torch. A plan for another machine equals the one that the other machine would make.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.base.errors import BadInput, Mistake
from bench.base.gpu_catalogue import gpu_named
from bench.base.sizes import bytes_text
from bench.planning.manifest import Manifest, ModelRequest
from bench.planning.memory_prediction import host_bytes, moment_bytes, predict_bytes, state_bytes
from bench.records.trial import NodeFacts, Skipped, Trial
from bench.training.methods import (
    RECORDED,
    Target,
    arithmetic,
    conflict,
    free_lunch,
    label,
    memory_saving_settings,
    method_named,
    ordered,
    refusal,
)
from bench.training.models import Counted, Model, Parts, counts_by_formula, family_of
from bench.training.models.generic import TransformersFamily
from bench.training.setting import NAIVE, Setting, in_group

# A setting predicted to need more than this multiple of the memory is not tried; predictions can be wrong.
HOPELESS = 1.5
DOUBT = 0.15  # relative error, up or down, of the predicted memory before any sample: docs/accuracy.md
# Nineteen of twenty measured trials take at most this share more than predicted (docs/accuracy.md), and torch
# can allocate this much less than a GPU's whole memory, of which its driver takes the rest.
EXCEEDED_BY = 0.05
DRIVER_BYTES = 410 * 2**20
USABLE = 0.92  # share of the memory for tensors: the CUDA context and fragmentation take the rest


@dataclass(frozen=True, slots=True)
class SettingPlan:
    """One setting of one model: its trials, from the largest micro-batch worth a try downwards."""

    label: str
    trials: tuple[Trial, ...]
    needs: Mapping[int, int | None]  # predicted bytes by micro-batch; None: no formula predicts them
    least_bytes: int | None  # memory before any sample; None: unknown until the model is built
    floor_days: float | None  # at the vendor's peak rate: no machine of this kind is faster
    host_bytes: int = 0  # each node's own memory that offloading takes

    @property
    def model(self) -> Model:
        """The model that all its trials train."""
        return self.trials[0].model

    @property
    def setting(self) -> Setting:
        """The setting that all its trials have; they differ in the micro-batch."""
        return self.trials[0].setting

    def may_not_fit(self, trial: Trial, memory_bytes: int) -> bool:
        """Whether a trial's predicted memory, with its error, is more than torch can allocate."""
        needed = self.needs[trial.micro_batch]
        return needed is not None and may_not_fit(needed, memory_bytes)

    @property
    def predicted_bytes(self) -> int | None:
        """The memory a GPU needs at the first micro-batch; None if it cannot be predicted."""
        return self.needs[self.trials[0].micro_batch]


@dataclass(frozen=True, slots=True)
class Plan:
    """All settings that a run would measure on the target, and those that it would skip."""

    manifest_digest: str
    target: Target
    cells: tuple[SettingPlan, ...]
    skipped: tuple[Skipped, ...]
    memory_bytes: int  # memory of one device that trials may use
    guided: frozenset[str] = frozenset()  # models whose fastest setting is searched for
    trial_seconds: float = math.inf  # a longer trial is ended


def target_of(node: NodeFacts, gpus: int | None, nodes: int = 1, lacks: tuple[str, ...] = ()) -> Target:
    """Return the devices that a manifest asks for, on `nodes` equal nodes; `gpus` None asks for all GPUs.

    `lacks` are packages that are installed and have no code for these GPUs.
    """
    if not node.gpus:
        return Target("cpu", nodes * (gpus or 1), node.memory_bytes, node.cpu, None, node.memory_bytes, nodes)
    count = gpus or len(node.gpus)
    if count > len(node.gpus):
        raise BadInput(
            f"the manifest asks for {count} GPUs, this node has {len(node.gpus)}",
            advice='lower "gpus", or leave it out to take all there are',
        )
    chosen = node.gpus[:count]
    smallest = min(gpu.memory_bytes for gpu in chosen)
    capability = min((gpu.compute_capability for gpu in chosen), key=float)
    names = " + ".join(dict.fromkeys(gpu.name for gpu in chosen))
    host = node.memory_bytes
    return Target("cuda", nodes * count, smallest, names, capability, host, nodes, lacks=lacks)


def make_plan(manifest: Manifest, target: Target, counted: Mapping[str, Counted] | None = None) -> Plan:
    """Plan every trial of a manifest on the target devices; raise BadInput if a batch cannot stay exact.

    `counted` has, by model name, the parameters, operations and memory of models without formulas.
    """
    _check_batches(manifest, target)
    # Plan every model's first setting before any second one: an early end then leaves an answer for each.
    per_model = [list(_settings(request, target)) for request in manifest.requests]
    known = counted or {}
    counts = {model.name: known.get(model.name) or counts_by_formula(model) for model in manifest.models}
    planned = [
        _plan_setting(manifest, request, settings[row], target, counts[request.model.name])
        for row in range(max(map(len, per_model)))
        for request, settings in zip(manifest.requests, per_model, strict=True)
        if row < len(settings)
    ]
    return Plan(
        manifest_digest=manifest.digest,
        target=target,
        cells=tuple(each for each in planned if isinstance(each, SettingPlan)),
        skipped=tuple(each for each in planned if isinstance(each, Skipped)),
        memory_bytes=usable_bytes(manifest.memory_cap_bytes, target),
        guided=frozenset(request.model.name for request in manifest.requests if request.methods == "guided"),
        trial_seconds=manifest.trial_seconds,
    )


def _settings(request: ModelRequest, target: Target) -> Iterator[Setting]:
    """Yield a model's settings, each once, in the manifest's order."""
    model, methods = request.model, request.methods
    if methods == "exhaustive":
        yield NAIVE
        for setting in memory_saving_settings(target.gpus):
            yield free_lunch(model, target, setting)
        return
    if methods == "guided":
        yield from guided_settings(model, target)
        return
    by_name = {"naive": NAIVE, "free-lunch": free_lunch(model, target)}
    yield from dict.fromkeys(by_name[entry] if isinstance(entry, str) else entry for entry in methods)


def guided_settings(model: Model, target: Target) -> list[Setting]:
    """Return every setting that may be a model's fastest: each way to save memory, with useful methods.

    Settings without sharding are also tried uncompiled, because a compiler may fail or never end. Settings
    that record passes are also tried without, because the code of an unknown model may wait for the GPU.
    """
    found: list[Setting] = []
    halves = method_named("half-weights").why_not(model, target) is None
    for setting in memory_saving_settings(target.gpus):
        beside = [setting]
        if halves and not conflict(lowered := ordered([*setting, "half-weights"])):
            beside.append(lowered)
        lunches = [free_lunch(model, target, methods) for methods in beside]
        found += lunches
        found += (tuple(name for name in lunch if name != RECORDED) for lunch in lunches)
        if in_group(setting, "sharding") is None:
            found.append(free_lunch(model, target, setting, compiled=False))
    return [*dict.fromkeys(found)]


def _plan_setting(
    manifest: Manifest, request: ModelRequest, setting: Setting, target: Target, counts: Counted | None
) -> SettingPlan | Skipped:
    """Return the plan of one setting, or why it is skipped: a method refuses it, or memory is too small."""
    model = request.model
    name = label(setting, model, target)
    parts = counts.parts if counts else Parts(0, ())
    host = host_bytes(parts.total, setting, target.gpus, target.nodes, parts.frozen_bytes) if counts else 0
    if reason := refusal(setting, model, target, counts) or _host_is_small(host, target):
        return Skipped(model.name, setting, name, reason)
    memory = usable_bytes(manifest.memory_cap_bytes, target)
    share = model.recipe.batch_size // target.gpus
    sizes = [request.micro_batch] if request.micro_batch else divisors(share)
    needs = {size: predict_bytes(model, setting, size, target.gpus, counts) for size in sizes}
    states = None
    if counts:
        moments = moment_bytes(model, counts.parts)
        half = model.recipe.precision != "fp32"
        states = state_bytes(counts.parts, setting, target.gpus, moments, half=half)
    least, what, beyond = needs[sizes[-1]], f"at micro-batch {sizes[-1]}", HOPELESS
    if least is None:
        least, what, beyond = states, "before any sample", 1 / (1 - DOUBT)
    if least is not None and least > beyond * memory:
        reason = f"needs about {bytes_text(least)} {what}; there are {bytes_text(memory)}"
        return Skipped(model.name, setting, name, reason)
    fitting = [size for size in sizes if (need := needs[size]) is None or need <= USABLE * memory]
    chosen = thinned(fitting or sizes[-1:])
    as_manifest = (manifest.seed, manifest.timing, manifest.memory_cap_bytes)
    return SettingPlan(
        label=name,
        trials=tuple(
            Trial(model, setting, size, target.gpus, *as_manifest, data=request.data) for size in chosen
        ),
        needs={size: needs[size] for size in chosen},
        least_bytes=states,
        floor_days=_floor_days(model, setting, target, counts),
        host_bytes=host,
    )


def never_counted(made: Plan) -> tuple[str, ...]:
    """Say of each model which of its settings have memory that is unknown before they run, and what to do.

    They compile attention that could be fused, and was not asked to be: the compiler may fuse it or not.
    """
    found = dict[str, list[str]]()
    for cell in made.cells:
        family = family_of(cell.model)
        kernels, compiled = "kernels" in cell.setting, in_group(cell.setting, "compilation") is not None
        if cell.predicted_bytes is None and isinstance(family, TransformersFamily):
            counted = {(with_kernels, how) for with_kernels, hows in family.counted_ways() for how in hows}
            if (kernels, compiled) not in counted:
                found.setdefault(cell.model.name, []).append(cell.label)
    return tuple(
        f"{name}: the memory of {', '.join(labels)} is unknown before it runs: without kernels, "
        "torch.compile may keep every score of attention in memory, or none. The run finds out: it tries the "
        "largest micro-batch first, then smaller ones. With kernels beside it, attention keeps no scores, "
        "and the plan knows the memory"
        for name, labels in found.items()
    )


def usable_bytes(memory_cap_bytes: int | None, target: Target) -> int:
    """Return memory of one device that trials may use: the manifest's cap, if the device has more."""
    return min(memory_cap_bytes or target.memory_bytes, target.memory_bytes)


def may_not_fit(predicted_bytes: int, memory_bytes: int) -> bool:
    """Whether a prediction leaves no room for its own error in a device of this memory."""
    return predicted_bytes * (1 + EXCEEDED_BY) > memory_bytes - DRIVER_BYTES


def _host_is_small(needed: int, target: Target) -> str | None:
    available = target.host_bytes
    if available is None or needed <= available:
        return None
    needs = f"offloading needs about {bytes_text(needed)} of the host's memory"
    return f"{needs}; there are {bytes_text(available)}"


def divisors(number: int) -> list[int]:
    """Return every micro-batch that keeps the recipe's batch exact, the largest first."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def thinned(sizes: list[int]) -> list[int]:
    """Drop each micro-batch above 75% of the next larger one: it seldom fits if that one does not."""
    chosen = sizes[:1]
    for size in sizes[1:]:
        if size <= 0.75 * chosen[-1] or size == 1:
            chosen.append(size)
    return chosen


def _floor_days(model: Model, setting: Setting, target: Target, counts: Counted | None) -> float | None:
    """Return the days at the vendor's peak rate; None for a CPU or a GPU that the catalogue lacks."""
    gpu = gpu_named(target.name) if target.device == "cuda" else None
    if gpu is None or counts is None:
        return None
    flops = arithmetic(setting, model, counts)
    recipe = model.recipe
    rate = gpu.peak_flops(recipe.precision, tf32="tf32" in setting) * target.gpus
    return flops.training * recipe.batch_size * recipe.steps / rate / 86_400


def _check_batches(manifest: Manifest, target: Target) -> None:
    """Refuse a manifest in which GPUs or a micro-batch do not divide a recipe's batch."""
    mistakes = []
    for i, request in enumerate(manifest.requests):
        batch = request.model.recipe.batch_size
        share, rest = divmod(batch, target.gpus)
        if rest:
            text = f"batch {batch} does not divide among {target.gpus} GPUs"
            most = 2 * target.gpus
            counts = ", ".join(str(count) for count in reversed(divisors(batch)) if count <= most)
            mistakes.append(Mistake(f"/models/{i}", text, f"allowed numbers of GPUs: {counts}"))
        elif request.micro_batch and share % request.micro_batch:
            text = f"{request.micro_batch} does not divide {request.model.name}'s {share} samples a GPU"
            allowed = f"allowed: {', '.join(map(str, reversed(divisors(share))))}"
            mistakes.append(Mistake(request.micro_batch_path, text, allowed))
    if mistakes:
        raise BadInput("the batch cannot be kept exact", where=manifest.where, mistakes=tuple(mistakes))
