"""`bench.predict`: days and costs on machines that are not here, with an error bar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from bench.base import quantities
from bench.base.gpu_catalogue import GpuModel, gpu_models
from bench.base.gpu_spec import load_gpu_spec
from bench.base.names import RentKind
from bench.library.budget import budget_of
from bench.library.energy import energy_of
from bench.library.given import AnyPath, AnyPaths, choice, path_of, paths_of, quantity, texts_of
from bench.library.given_manifest import GivenManifest, manifest_of
from bench.library.machines import machine_named
from bench.planning.prediction.interruptions import Interruptions, interrupted
from bench.planning.prediction.predicted_machines import Predicted, Predictor, Unpredicted
from bench.planning.prediction.step_time import shipped_fit
from bench.report.compare.energy_factors import EnergyFactors
from bench.report.compare.price_file import load_prices
from bench.report.compare.priced_predictions import PricedPrediction, priced
from bench.training.models import Model
from bench.training.models.dry_build import rehearse

ALL = "all"
ALL_COUNTS = (1, 8)  # GPUs of each kind that "all" stands for


@dataclass(frozen=True, slots=True)
class Predictions:
    """The machines that fit the wish, with days and costs of each model, and those without a prediction."""

    manifest: str  # its digest
    trained: tuple[Model, ...]  # with the recipes whose days are predicted
    currency: str
    energy: EnergyFactors
    predicted: tuple[PricedPrediction, ...]
    outside: tuple[PricedPrediction, ...]  # of machines that miss the deadline or the budget
    unpredicted: tuple[Unpredicted, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(model.name for model in self.trained)

    def to_json(self) -> dict[str, object]:
        """Return the document of `bench predict --json`."""
        return {
            "schema": "bench/prediction/v1",
            "manifest": self.manifest,
            "currency": self.currency,
            "energy": asdict(self.energy),
            "predicted": [asdict(row) for row in self.predicted],
            "unpredicted": [asdict(entry) for entry in self.unpredicted],
        }


def predict(
    manifest: GivenManifest,
    *,
    gpu: str | Iterable[str] = ALL,
    prices: AnyPath | None = None,
    rent: RentKind = "on-demand",
    budget_usd: float | str | None = None,
    deadline: float | str | None = None,
    gpu_spec: AnyPaths = (),
    interrupted_every: float | str | None = None,
    restart: float | str = 600.0,
    save_every: float | str = 1800.0,
    node_overhead: float | str | None = None,
    gco2_per_kwh: float | str | None = None,
    own: bool = False,
) -> Predictions:
    """Predict days and costs of a manifest's models on machines that are not here, without a GPU.

    `manifest`           a file or a dictionary
    `gpu`                machines: "h200", "h200,8xh100", or a list; "all" is every known card, 1 and 8 of it
    `prices`, `rent`     your quotes, and the kind of rent that counts, as for `bench.compare`
    `budget_usd`         only machines on which a run costs at most this
    `deadline`           only machines that end before it: days, or a text such as "36h", "2w", "2027-01-31"
    `gpu_spec`           files that describe cards which bench does not know
    `interrupted_every`  the mean time between interruptions of a machine: seconds, or "12h", "30d"
    `restart`            from an interruption until training goes on: seconds, or "10m"
    `save_every`         between checkpoints: seconds, or "30m"
    `node_overhead`      kWh of the whole node for each kWh of its GPUs
    `gco2_per_kwh`       grams of CO2 for each kWh
    `own`                the budget is for machines that you own, and not for rents

    Raises BadInput for a manifest with mistakes, or a machine that does not exist.

    >>> found = bench.predict("manifests/hour.json", gpu="h200,8xh100", deadline="3d")
    >>> for row in found.predicted:
    ...     print(row.predicted.model, "on", row.predicted.gpus, "x", row.predicted.gpu)
    pythia-160m on 8 x NVIDIA H100 80GB HBM3
    pythia-410m on 8 x NVIDIA H100 80GB HBM3
    """
    loaded, where = manifest_of(manifest)
    choice("rent", rent, RentKind)
    book = load_prices(path_of(prices)).renting(rent)
    budget = budget_of(budget_usd, book)
    days = None if deadline is None else quantity("deadline", deadline, quantities.deadline)
    energy = energy_of(node_overhead, gco2_per_kwh)
    interruptions = _interruptions(interrupted_every, restart, save_every)
    described = [load_gpu_spec(path) for path in paths_of(gpu_spec)]
    machines = dict.fromkeys(_machines(texts_of(gpu), described))
    counted = rehearse(loaded.models, where).counted
    predictor = Predictor(loaded.models, counted, shipped_fit(), loaded.memory_cap_bytes)
    found = [
        _lasting(prediction, interruptions)
        for kind, count in machines
        for prediction in predictor.predict(kind, count)
    ]
    rows = [priced(prediction, book, energy) for prediction in found if isinstance(prediction, Predicted)]
    return Predictions(
        manifest=loaded.digest,
        trained=loaded.models,
        currency=book.currency,
        energy=energy,
        predicted=tuple(row for row in rows if _fits(row, days, budget, own=own)),
        outside=tuple(row for row in rows if not _fits(row, days, budget, own=own)),
        unpredicted=tuple(prediction for prediction in found if isinstance(prediction, Unpredicted)),
    )


def _interruptions(
    every: float | str | None, restart: float | str, save_every: float | str
) -> Interruptions | None:
    restart_seconds = quantity("restart", restart, quantities.duration)
    save_seconds = quantity("save_every", save_every, quantities.duration)
    if every is None:
        return None
    between = quantity("interrupted_every", every, quantities.duration)
    return Interruptions(between, restart_seconds, save_seconds)


def _lasting(found: Predicted | Unpredicted, interruptions: Interruptions | None) -> Predicted | Unpredicted:
    """Add the cost of interruptions to a prediction; Unpredicted if they leave no time to train."""
    if interruptions is None or isinstance(found, Unpredicted):
        return found
    lasting = interrupted(found, interruptions)
    if math.isfinite(lasting.days):
        return lasting
    reason = "between two interruptions it hardly ever reaches a checkpoint"
    return Unpredicted(found.model, found.gpu, found.gpus, reason)


def _machines(texts: Iterable[str], described: Sequence[GpuModel]) -> Iterator[tuple[GpuModel, int]]:
    for word in (word for text in texts for word in text.split(",")):
        if word == ALL:
            every = (*described, *gpu_models())
            yield from ((gpu, count) for gpu in every for count in ALL_COUNTS)
        else:
            yield machine_named(word, "--gpu", described, "--gpu-spec FILE describes a card")


def _fits(row: PricedPrediction, deadline_days: float | None, budget: float | None, *, own: bool) -> bool:
    in_time = deadline_days is None or row.predicted.most_days <= deadline_days
    cost = row.cost(own=own)
    return in_time and (budget is None or (cost is not None and cost.amount <= budget))
