"""The costs of owning a machine besides its price and electricity: capital, colocation, operations, resale.

Each is a dated quote with its source, and none is assumed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.records.text import figures, money_text

DAYS_A_YEAR, MONTHS_A_YEAR = 365, 12


@dataclass(frozen=True, slots=True)
class Percentage:
    """A cost or value of owning a machine, in percent; `Owning` says of what."""

    percent: float
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class Colocation:
    """The price of a kilowatt a month. `overhead` is the kW booked for each kW that the GPUs may draw."""

    price: float
    date: str
    source: str
    overhead: float = 1.0
    currency: str | None = None  # None: the file's currency


@dataclass(frozen=True, slots=True)
class Owning:
    """The costs of owning; None: that cost is left out."""

    capital: Percentage | None = None  # a year: interest paid on the price, or earnings given up
    colocation: Colocation | None = None
    operations: Percentage | None = None  # of the price a year: repair, insurance and people
    residual: Percentage | None = None  # of the price: what the machine is sold for at the end of its life

    def upkeep_a_day(
        self, price: float, kilowatts: float | None, life_years: float, of_colocation: float
    ) -> float:
        """Return the cost of each day of a machine's life, in addition to an equal share of its price.

        `of_colocation` is the price of colocation in the currency of `price`. A residual value may make the
        result negative. Without `kilowatts`, colocation is left out.
        """
        share = (self.residual.percent if self.residual else 0.0) / 100
        rate = (self.capital.percent if self.capital else 0.0) / 100
        a_year = annuity(price, share * price, rate, life_years) - price / life_years
        if self.operations:
            a_year += self.operations.percent / 100 * price
        if self.colocation and kilowatts is not None:
            a_year += MONTHS_A_YEAR * of_colocation * kilowatts * self.colocation.overhead
        return a_year / DAYS_A_YEAR

    def texts(self, kilowatts: float | None, currency: str) -> Iterator[str]:
        """Yield the quotes in words, with source and date."""
        if cost := self.capital:
            yield f"{figures(cost.percent)}% a year for the capital: {cost.source}, {cost.date}"
        if place := self.colocation:
            amount = money_text(place.price, place.currency or currency)
            booked = "the power of these GPUs is not known, so it is left out"
            if kilowatts is not None:
                booked = f"{figures(kilowatts * place.overhead)} kW booked"
            yield f"{amount} a month for a kW of colocation, {booked}: {place.source}, {place.date}"
        if work := self.operations:
            yield f"{figures(work.percent)}% of the price a year for operations: {work.source}, {work.date}"
        if left := self.residual:
            yield f"{figures(left.percent)}% of the price at the end of its life: {left.source}, {left.date}"


def annuity(price: float, residual: float, rate: float, years: float) -> float:
    """Return the yearly payment for a price with interest, if the residual value comes back at the end."""
    if rate == 0:
        return (price - residual) / years
    growth: float = (1 + rate) ** years
    return (price * growth - residual) * rate / (growth - 1)
