"""Predictions with the cost of a run on a rented and on an owned machine. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bench.base.gpu_catalogue import GPUS_A_NODE
from bench.planning.prediction.predicted_machines import Predicted, Unpredicted
from bench.report.compare.energy_factors import NO_FACTORS, EnergyFactors
from bench.report.compare.prices import Gap, PriceBook, Priced, for_nodes


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of one run, and the quotes behind it, each with its source and date."""

    amount: float
    quotes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PricedPrediction:
    """A prediction and the costs of a run; None without a quote."""

    predicted: Predicted
    rented: RunCost | None
    owned: RunCost | None  # a share of the price and the upkeep by its days, and electricity if priced
    units_per_dollar: float | None  # tokens, images or pairs that the rent of a run pays for
    node_kwh: float | None = None
    co2_kg: float | None = None

    def cost(self, *, own: bool) -> RunCost | None:
        """Return the cost of a run on an owned or on a rented machine; None without a quote."""
        return self.owned if own else self.rented


def priced(found: Predicted, book: PriceBook, energy: EnergyFactors = NO_FACTORS) -> PricedPrediction:
    """Price a run by quotes for machines of as many GPUs as one node needs."""
    buy, rent = machine_prices(found.gpu, found.gpus, book)
    rented, owned = None, None
    if isinstance(rent, Priced):
        rented = RunCost(rent.amount * found.days * 24, rent.quotes)
    if isinstance(buy, Priced):
        electricity, quotes = book.electricity_of(found.kwh)
        upkeep, of_upkeep = book.upkeep_of(buy, found.watts)
        amount = (buy.amount / book.life_days + upkeep) * found.days + electricity
        owned = RunCost(amount, (*buy.quotes, *quotes, *of_upkeep))
    return PricedPrediction(
        found,
        rented,
        owned,
        found.units / rented.amount if rented else None,
        energy.node_kwh(found.kwh),
        energy.co2_kg(found.kwh),
    )


def machine_prices(gpu: str, gpus: int, book: PriceBook) -> tuple[Priced | Gap, Priced | Gap]:
    """Price a machine that is not here, to buy and to rent: as few nodes as hold `gpus` GPUs."""
    nodes = nodes_of(gpus)
    gpus_a_node = math.ceil(gpus / nodes)
    return (
        for_nodes(book.to_buy(gpu, gpus_a_node), nodes),
        for_nodes(book.to_rent(gpu, gpus_a_node), nodes),
    )


def nodes_of(gpus: int) -> int:
    """Return the fewest nodes that hold this number of GPUs, at most GPUS_A_NODE each."""
    return math.ceil(gpus / GPUS_A_NODE)


def machine_text(found: Predicted | Unpredicted) -> str:
    """Name a machine shortly: the number of GPUs, and their kind without its vendor."""
    name = re.sub(r"^(NVIDIA|AMD) |GeForce |Instinct | Blackwell| Edition$| Generation$| OAM$", "", found.gpu)
    return f"{found.gpus}x {name}"
