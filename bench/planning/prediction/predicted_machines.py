"""The setting that a machine would train a model with, and how long that would take. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.base.distribution import pip_install
from bench.base.gpu_catalogue import GPUS_A_NODE, GpuModel
from bench.planning.plan import usable_bytes
from bench.planning.prediction.candidates import Candidate, Candidates, candidates_of
from bench.planning.prediction.card_rates import CardRates, rates_of
from bench.planning.prediction.choice import chosen
from bench.planning.prediction.step_time import (
    KEPT_MOVES,
    Fit,
    StepPart,
    StepTime,
    Work,
    group_of,
    step_time,
    why_unpredicted,
    work_of,
)
from bench.records.estimate import SECONDS_A_DAY
from bench.training.methods import Target, label
from bench.training.models import Counted, Model, Recipe, counts_by_formula
from bench.training.setting import Setting

AmountUnit = Literal["operations", "bytes", "elements"]


@dataclass(frozen=True, slots=True)
class PredictedPart:
    """A part of a pass: its operations or bytes, and its seconds."""

    name: str
    amount: float
    unit: AmountUnit
    seconds: float  # in a pass; of exchange, what computing does not hide


@dataclass(frozen=True, slots=True)
class Predicted:
    """The fastest setting of a model on a machine that is not here."""

    model: str
    gpu: str
    gpus: int
    label: str
    setting: Setting
    micro_batch: int
    accumulation: int
    step_seconds: float
    days: float
    least_days: float  # nine of ten predictions are between these two
    most_days: float
    memory_bytes: int
    limit: str  # what takes most of the time
    kwh: float | None  # at the power limit of the GPUs
    watts: float | None  # the power limit of all GPUs together
    source: str  # of the rate of products
    parts: tuple[PredictedPart, ...]
    update_seconds: float
    units: float  # tokens, images or pairs of the whole run

    @property
    def pass_seconds(self) -> float:
        """The seconds of one pass: those of its parts one after the other."""
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A model that is not predicted on a machine, and the reason."""

    model: str
    gpu: str
    gpus: int
    reason: str


class Predictor:
    """Predicts models machine by machine; machines that are alike share the candidates."""

    def __init__(
        self,
        models: Sequence[Model],
        counted: Mapping[str, Counted],
        fit: Fit,
        memory_cap_bytes: int | None = None,
    ) -> None:
        """`counted` has, by model name, the counts of models without formulas."""
        self.models = models
        self.memory_cap_bytes = memory_cap_bytes  # of each device
        self.fit = fit
        self.counts = {m.name: counted.get(m.name) or counts_by_formula(m) for m in self.models}
        self._candidates: dict[tuple[str, int, str | None], Candidates] = {}

    def predict(self, gpu: GpuModel, gpus: int) -> list[Predicted | Unpredicted]:
        """Predict every model on `gpus` GPUs of a kind, each in its fastest setting."""
        target = target_of_kind(gpu, gpus)
        return [self._predict(model, gpu, target) for model in self.models]

    def _predict(self, model: Model, gpu: GpuModel, target: Target) -> Predicted | Unpredicted:
        def unpredicted(reason: str) -> Unpredicted:
            return Unpredicted(model.name, gpu.name, target.gpus, reason)

        recipe, counts = model.recipe, self.counts[model.name]
        samples, left = divmod(recipe.batch_size, target.gpus)
        if left:
            return unpredicted(f"a batch of {recipe.batch_size} does not divide among {target.gpus} GPUs")
        if counts is None:
            return unpredicted(f"torch and transformers must count its operations: {pip_install('run')}")
        candidates = self._candidates_of(model, counts, target)
        memory = usable_bytes(self.memory_cap_bytes, target)
        rates = rates_of(gpu)
        fastest = self._fastest(candidates, recipe, target.gpus, samples, memory, rates)
        if fastest is None:
            return unpredicted(candidates.why_none())
        time, candidate, batch = fastest
        days = time.seconds * recipe.steps / SECONDS_A_DAY
        error = self.fit.error(group_of(model, counts), gpu.name, target.gpus)
        return Predicted(
            model=model.name,
            gpu=gpu.name,
            gpus=target.gpus,
            label=label(candidate.setting, model, target),
            setting=candidate.setting,
            micro_batch=batch.samples,
            accumulation=batch.passes,
            step_seconds=time.seconds,
            days=days,
            least_days=days / (1 + error),
            most_days=days * (1 + error),
            memory_bytes=candidate.needs[batch.samples],
            limit=time.limit,
            kwh=gpu.watts * target.gpus * days * 24 / 1000 if gpu.watts else None,
            watts=gpu.watts * target.gpus if gpu.watts else None,
            source=rates.product_source,
            parts=_parts(candidate.work, batch, time),
            update_seconds=time.update,
            units=float(recipe.batch_size) * recipe.steps * recipe.units_per_sample,
        )

    def _fastest(
        self,
        candidates: Candidates,
        recipe: Recipe,
        gpus: int,
        samples: int,
        memory_bytes: int,
        rates: CardRates,
    ) -> tuple[StepTime, Candidate, StepPart] | None:
        """Choose the setting and micro-batch of a model; None if no setting fits into a GPU's memory."""
        multipliers = self.fit.multipliers
        timed = [
            (step_time(candidate.work, batch, gpus, rates, recipe.precision, multipliers), candidate, batch)
            for candidate in candidates.settings
            for batch in candidate.batches_in(memory_bytes, samples)
        ]
        if not timed:
            return None
        return chosen(
            timed,
            seconds=lambda each: each[0].seconds,
            sent_bytes=lambda each: each[1].work.sent_bytes(each[2].passes),
        )

    def _candidates_of(self, model: Model, counts: Counted, target: Target) -> Candidates:
        alike = (model.name, target.gpus, target.compute_capability)
        if alike not in self._candidates:
            self._candidates[alike] = candidates_of(model, counts, target)
        return self._candidates[alike]


def _parts(work: Work, batch: StepPart, time: StepTime) -> tuple[PredictedPart, ...]:
    """Return the parts of a pass that take any time."""
    n = batch.samples
    amounts: dict[str, tuple[float, AmountUnit]] = {
        "products": (n * work.products, "operations"),
        "attention": (n * work.attention, "operations"),
        "convolutions": (n * work.convolutions, "operations"),
        "scans": (n * work.scans, "operations"),
        "memory": (n * (work.kept_bytes * KEPT_MOVES + work.logit_bytes) + work.weight_bytes, "bytes"),
        "elements": (n * work.kept_elements, "elements"),
        "exchange": (work.exchanged_each_pass.sent_bytes, "bytes"),
    }
    found = (PredictedPart(name, *amounts[name], seconds) for name, seconds in time.parts.items())
    return tuple(part for part in found if part.amount)


def target_of_kind(gpu: GpuModel, gpus: int) -> Target:
    """Return `gpus` GPUs of a kind, on as few nodes as hold them; what is installed there is unknown."""
    memory, nodes = int(gpu.memory_gib * 2**30), math.ceil(gpus / GPUS_A_NODE)
    return Target("cuda", gpus, memory, gpu.name, gpu.compute_capability, nodes=nodes, elsewhere=True)


def seconds_of(
    model: Model, counts: Counted, setting: Setting, batch: StepPart, machine: tuple[GpuModel, int], fit: Fit
) -> float | None:
    """Predict a step of one setting on a kind and a number of GPUs; None if it is not predicted."""
    gpu, gpus = machine
    work = None if why_unpredicted(model, setting) else work_of(model, setting, gpus, counts)
    if work is None:
        return None
    return step_time(work, batch, gpus, rates_of(gpu), model.recipe.precision, fit.multipliers).seconds
