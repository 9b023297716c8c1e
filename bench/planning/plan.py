"""Manifest x target -> plan: every trial that would run, what it should need, what is skipped.

Pure: no GPU is touched, no torch imported. A plan made for a machine that is not here is the same
plan as one made there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.base.errors import BadInput, Mistake
from bench.base.gpu_catalogue import gpu_named
from bench.planning.manifest import Manifest
from bench.planning.memory_prediction import host_bytes, predict_bytes, state_bytes
from bench.records.text import bytes_text
from bench.records.trial import NodeFacts, Skipped, Trial
from bench.training.methods import (
    Target,
    arithmetic,
    conflict,
    free_lunch,
    known_methods,
    label,
    memory_saving_settings,
    ordered,
    refusal,
)
from bench.training.models import Counted, Model, family_of
from bench.training.setting import NAIVE, Setting, in_group

# A prediction can be wrong: only what is far too large is not tried at all.
HOPELESS = 1.5
DOUBT = 0.15  # of what lies there before any sample, either way: docs/accuracy.md
# What the allocator's fragments and the CUDA context take beside the tensors.
USABLE = 0.92


@dataclass(frozen=True, slots=True)
class SettingPlan:
    """One setting of one model: its trials from the largest micro-batch worth a try downwards."""

    label: str
    trials: tuple[Trial, ...]
    ids: tuple[str, ...]  # of the trials: a hash each, not to be taken again at every decision
    needs: Mapping[int, int | None]  # predicted bytes by micro-batch; None: nothing predicts them
    least_bytes: int | None  # without any sample; None: counted when it runs
    floor_days: float | None  # at the vendor's peak rate: no machine of this kind is faster
    host_bytes: int = 0  # of each node's own memory, for what is offloaded

    @property
    def model(self) -> Model:
        return self.trials[0].model

    @property
    def setting(self) -> Setting:
        return self.trials[0].setting

    @property
    def predicted_bytes(self) -> int | None:
        return self.needs[self.trials[0].micro_batch]


@dataclass(frozen=True, slots=True)
class Plan:
    manifest_digest: str
    target: Target
    cells: tuple[SettingPlan, ...]
    skipped: tuple[Skipped, ...]
    memory_bytes: int  # of one device, as far as trials may use it
    guided: frozenset[str] = frozenset()  # models whose fastest setting is searched, not each one measured
    trial_seconds: float = math.inf  # after which a trial is ended


def target_of(node: NodeFacts, gpus: int | None, nodes: int = 1) -> Target:
    """The devices that a manifest asks for, of this node and of others like it."""
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
    return Target("cuda", nodes * count, smallest, names, capability, node.memory_bytes, nodes)


def make_plan(manifest: Manifest, target: Target, counted: Mapping[str, Counted] | None = None) -> Plan:
    """`counted`: by name, of models that have no formulas."""
    _check_batches(manifest, target)
    cells: list[SettingPlan] = []
    skipped: list[Skipped] = []
    # Setting by setting, not model by model: an early end leaves an answer for each model.
    per_model = [list(_settings(manifest, model, target)) for model in manifest.models]
    counts = {model.name: (counted or {}).get(model.name) or _by_formula(model) for model in manifest.models}
    for row in range(max(map(len, per_model))):
        for model, settings in zip(manifest.models, per_model, strict=True):
            if row >= len(settings):
                continue
            match _cell(manifest, model, settings[row], target, counts[model.name]):
                case SettingPlan() as cell:
                    cells.append(cell)
                case Skipped() as left_out:
                    skipped.append(left_out)
    guided = frozenset(m.name for m in manifest.models if manifest.methods_of(m) == "guided")
    memory = _usable_bytes(manifest, target)
    return Plan(manifest.digest, target, tuple(cells), tuple(skipped), memory, guided, manifest.trial_seconds)


def _settings(manifest: Manifest, model: Model, target: Target) -> Iterator[Setting]:
    """This model's settings, each once, in the manifest's order."""
    methods = manifest.methods_of(model)
    if methods == "exhaustive":
        yield NAIVE
        for setting in memory_saving_settings(target.gpus):
            yield free_lunch(model, target, setting)
        return
    if methods == "guided":
        yield from dict.fromkeys(_candidates(model, target))
        return
    named = {"naive": NAIVE, "free-lunch": free_lunch(model, target)}
    yield from dict.fromkeys(named[entry] if isinstance(entry, str) else entry for entry in methods)


def _candidates(model: Model, target: Target) -> Iterator[Setting]:
    """All that may be the fastest: every memory-saving setting, with every method that pays for some.

    What is not sharded, uncompiled too: where a compiler fails or never ends, something else must answer.
    """
    halves = known_methods()["half-weights"].refuse(model, target) is None
    for setting in memory_saving_settings(target.gpus):
        yield free_lunch(model, target, setting)
        if halves and not conflict(lowered := ordered([*setting, "half-weights"])):
            yield free_lunch(model, target, lowered)
        if in_group(setting, "sharding") is None:
            yield free_lunch(model, target, setting, compiled=False)


def _by_formula(model: Model) -> Counted | None:
    family = family_of(model)
    try:
        return Counted(family.parameters(model), family.forward_flops(model))
    except LookupError:
        return None


def _cell(
    manifest: Manifest, model: Model, setting: Setting, target: Target, counts: Counted | None
) -> SettingPlan | Skipped:
    name = label(setting, model, target)
    host = host_bytes(counts.parts.total, setting, target.gpus, target.nodes) if counts else 0
    if reason := refusal(setting, model, target) or _host_is_small(host, target):
        return Skipped(model.name, setting, name, reason)
    memory = _usable_bytes(manifest, target)
    share = model.recipe.batch_size // target.gpus
    wanted = manifest.model_micro_batch.get(model.name, manifest.micro_batch)
    sizes = [wanted] if wanted else _divisors(share)
    needs = {size: predict_bytes(model, setting, size, target.gpus) for size in sizes}
    half = model.recipe.precision != "fp32"
    states = state_bytes(counts.parts, setting, target.gpus, half) if counts else None
    least, what, beyond = needs[sizes[-1]], f"at micro-batch {sizes[-1]}", HOPELESS
    if least is None:
        least, what, beyond = states, "before any sample", 1 / (1 - DOUBT)
    if least is not None and least > beyond * memory:
        reason = f"needs about {bytes_text(least)} {what}; there are {bytes_text(memory)}"
        return Skipped(model.name, setting, name, reason)
    fitting = [size for size in sizes if (need := needs[size]) is None or need <= USABLE * memory]
    chosen = _thinned(fitting or sizes[-1:])
    trials = tuple(
        Trial(model, setting, size, target.gpus, manifest.seed, manifest.timing, manifest.memory_cap_bytes)
        for size in chosen
    )
    ids = tuple(trial.id for trial in trials)
    predicted = {size: needs[size] for size in chosen}
    return SettingPlan(
        name, trials, ids, predicted, states, _floor_days(model, setting, target, counts), host
    )


def _usable_bytes(manifest: Manifest, target: Target) -> int:
    """Of one device: a cap takes away, and adds nothing to a card that has less."""
    return min(manifest.memory_cap_bytes or target.memory_bytes, target.memory_bytes)


def _host_is_small(needed: int, target: Target) -> str | None:
    there = target.host_bytes
    if there is None or needed <= there:
        return None
    return (
        f"offloading needs about {needed / 2**30:.0f} GiB of the host's memory; there are {there / 2**30:.0f}"
    )


def _divisors(number: int) -> list[int]:
    """Every micro-batch that keeps the recipe's batch exact, the largest first."""
    return [size for size in range(number, 0, -1) if number % size == 0]


def _thinned(sizes: list[int]) -> list[int]:
    """After memory ran out, a step down of less than a quarter is not worth a trial."""
    chosen = sizes[:1]
    for size in sizes[1:]:
        if size <= 0.75 * chosen[-1] or size == 1:
            chosen.append(size)
    return chosen


def _floor_days(model: Model, setting: Setting, target: Target, counts: Counted | None) -> float | None:
    gpu = gpu_named(target.name) if target.device == "cuda" else None
    if gpu is None or counts is None:
        return None
    flops = arithmetic(setting, model, counts.flops)
    recipe = model.recipe
    rate = gpu.peak_flops(recipe.precision, "tf32" in setting) * target.gpus
    return flops.training * recipe.batch_size * recipe.steps / rate / 86_400


def _check_batches(manifest: Manifest, target: Target) -> None:
    mistakes = []
    for i, model in enumerate(manifest.models):
        batch = model.recipe.batch_size
        share, rest = divmod(batch, target.gpus)
        micro_batch = manifest.model_micro_batch.get(model.name, manifest.micro_batch)
        if rest:
            mistakes.append(
                Mistake(
                    f"/models/{i}", f"batch {batch} does not divide among {target.gpus} GPUs", "change gpus"
                )
            )
        elif micro_batch and share % micro_batch:
            own = model.name in manifest.model_micro_batch
            mistakes.append(
                Mistake(
                    f"/models/{i}/micro_batch" if own else "/micro_batch",
                    f"{micro_batch} does not divide {model.name}'s {share} samples a GPU",
                    f"allowed: {', '.join(map(str, reversed(_divisors(share))))}",
                )
            )
    if mistakes:
        raise BadInput("the batch cannot be kept exact", where=manifest.name, mistakes=tuple(mistakes))
