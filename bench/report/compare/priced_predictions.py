"""Predictions with what a run would cost: rented, and on a machine that one owns. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bench.planning.prediction.card_rates import GPUS_A_NODE
from bench.planning.prediction.predicted_machines import Predicted, Unpredicted
from bench.report.compare.prices import Gap, PriceBook, Priced


@dataclass(frozen=True, slots=True)
class RunCost:
    """What one run costs, and the quotes that say so, each with its source and date."""

    amount: float
    quotes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PricedPrediction:
    """A prediction and the costs of a run; None without a quote."""

    predicted: Predicted
    rented: RunCost | None
    owned: (
        RunCost | None
    )  # a run's share of the machine's price by its days, and electricity if it has a price
    units_per_dollar: float | None  # tokens, images or pairs that the rent of a run pays for

    def cost(self, *, own: bool) -> RunCost | None:
        return self.owned if own else self.rented


def priced(found: Predicted, book: PriceBook) -> PricedPrediction:
    """Price a run by quotes for machines of as many GPUs as one node needs."""
    machines = math.ceil(found.gpus / GPUS_A_NODE)
    gpus_a_machine = math.ceil(found.gpus / machines)
    rented = _rented(book.to_rent(found.gpu, gpus_a_machine), machines, found.days)
    owned = _owned(book.to_buy(found.gpu, gpus_a_machine), machines, found, book)
    return PricedPrediction(found, rented, owned, found.units / rented.amount if rented else None)


def _rented(rent: Priced | Gap, machines: int, days: float) -> RunCost | None:
    return RunCost(rent.amount * machines * days * 24, rent.quotes) if isinstance(rent, Priced) else None


def _owned(price: Priced | Gap, machines: int, found: Predicted, book: PriceBook) -> RunCost | None:
    if not isinstance(price, Priced):
        return None
    electricity = book.to_feed(found.kwh) if found.kwh is not None else None
    fed, quotes = (electricity.amount, electricity.quotes) if electricity else (0.0, ())
    return RunCost(price.amount * machines * found.days / book.life_days + fed, price.quotes + quotes)


def machine_text(found: Predicted | Unpredicted) -> str:
    """Name a machine shortly: the number of GPUs, and their kind without its vendor."""
    name = re.sub(r"^(NVIDIA|AMD) |GeForce |Instinct | Blackwell| Edition$| Generation$| OAM$", "", found.gpu)
    return f"{found.gpus}x {name}"
