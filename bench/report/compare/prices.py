"""Prices of machines, rent and electricity: dated, sourced quotes, converted to one currency.

Prices are never guessed: a machine that no quote covers is a `Gap`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from bench.base.names import RentKind
from bench.records.text import count_text, figures, money_text
from bench.report.compare.owning import DAYS_A_YEAR, Colocation, Owning


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """The price of a GPU without the machine around it."""

    gpu: tuple[str, ...]  # names as the driver spells them, all at this price
    price: float
    date: str
    source: str
    currency: str | None = None  # None: the file's currency


@dataclass(frozen=True, slots=True)
class SystemPrice:
    """The price of a machine without GPUs, with room for `gpus` of them."""

    gpus: int
    price: float
    date: str
    source: str
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class MachinePrice:
    """The price of a whole machine; takes precedence over the sum of GPUs and system."""

    gpu: tuple[str, ...]
    gpus: int
    price: float
    date: str
    source: str
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Rent:
    """The price of an hour of a machine with `gpus` GPUs, or of each GPU if `gpus` is None."""

    gpu: tuple[str, ...]
    price: float  # an hour
    date: str
    source: str
    gpus: int | None = None
    currency: str | None = None
    provider: str = ""
    kind: RentKind = "on-demand"

    @property
    def place(self) -> tuple[object, ...]:
        """The rent's place in a list: by GPU, size of the machine, kind and price."""
        return self.gpu, self.gpus or 0, self.kind, self.price


@dataclass(frozen=True, slots=True)
class Electricity:
    """The price of a kilowatt-hour. `overhead` is the energy at the meter for each kWh that GPUs draw."""

    price: float
    date: str
    source: str
    overhead: float = 1.0
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """The value of one unit of `currency` in the file's currency."""

    currency: str
    price: float
    date: str
    source: str


Quote = GpuPrice | SystemPrice | MachinePrice | Rent | Electricity
Converted = Quote | Colocation


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All quotes that a comparison uses."""

    currency: str
    schema: Literal["bench/prices/v1"] = "bench/prices/v1"
    life_years: float = 5.0
    shipped: bool = True  # use the shipped quotes for what these do not price
    gpus: tuple[GpuPrice, ...] = ()
    systems: tuple[SystemPrice, ...] = ()
    machines: tuple[MachinePrice, ...] = ()
    rents: tuple[Rent, ...] = ()
    electricity: Electricity | None = None
    owning: Owning | None = None
    exchange: tuple[Exchange, ...] = ()

    @property
    def life_days(self) -> float:
        """The days over which the price of a machine is spread."""
        return self.life_years * DAYS_A_YEAR

    def renting(self, kind: RentKind) -> PriceBook:
        """Return the book with the rents of this kind only; every other quote stays."""
        return replace(self, rents=tuple(rent for rent in self.rents if rent.kind == kind))

    def rate(self, currency: str | None) -> float | None:
        """Return the worth of one unit of `currency` in the file's currency; None if it has no rate."""
        if currency in (None, self.currency):
            return 1.0
        return next((rate.price for rate in self.exchange if rate.currency == currency), None)

    def to_buy(self, gpu: str, count: int) -> Priced | Gap:
        """Price a machine with `count` GPUs of a kind, by a quote for the machine or for GPUs and system."""
        for machine in self.machines:
            if gpu in machine.gpu and machine.gpus == count:
                return Priced(self._worth(machine), self._quote_texts(machine, gpu), count)
        single = next((quote for quote in self.gpus if gpu in quote.gpu), None)
        if single is None:
            return Gap(f"no purchase price for {gpu}{self._nearly(gpu)}")
        large_enough = [system for system in self.systems if system.gpus >= count]
        if not large_enough:
            return Gap(f"no purchase price for a system that holds {count} GPUs")
        system = min(large_enough, key=lambda s: s.gpus)
        quotes = (*self._quote_texts(single, gpu), *self._quote_texts(system, gpu))
        return Priced(count * self._worth(single) + self._worth(system), tuple(dict.fromkeys(quotes)), count)

    def to_rent(self, gpu: str, count: int) -> Priced | Gap:
        """Price an hour of a machine with at least `count` GPUs of a kind, at the cheapest quote."""
        rents = [rent for rent in self.rents if gpu in rent.gpu and (rent.gpus is None or rent.gpus >= count)]
        amounts = [self._worth(rent) * (count if rent.gpus is None else 1) for rent in rents]
        if not rents:  # a name that joins several kinds has the counts already
            return Gap(f"no rent for {gpu if ' + ' in gpu else f'{count}x {gpu}'}{self._nearly(gpu)}")
        amount, rent = min(zip(amounts, rents, strict=True), key=lambda pair: pair[0])
        return Priced(amount, self._quote_texts(rent, gpu), rent.gpus or count)

    def to_feed(self, kwh: float) -> Priced | None:
        """Price the electricity that the GPUs drew; None if electricity has no price."""
        if (electricity := self.electricity) is None:
            return None
        amount = kwh * electricity.overhead * self._worth(electricity)
        return Priced(amount, self._quote_texts(electricity, ""), 0)

    def electricity_of(self, kwh: float | None) -> tuple[float, tuple[str, ...]]:
        """Return the cost of a run's electricity, and its quotes; nothing if energy or price is unknown."""
        priced = self.to_feed(kwh) if kwh is not None else None
        return (priced.amount, priced.quotes) if priced else (0.0, ())

    def upkeep_of(self, bought: Priced, watts: float | None) -> tuple[float, tuple[str, ...]]:
        """Return the cost of owning a machine for a day, without its price and electricity, and the quotes.

        `watts` is what its GPUs may draw, if that is known.
        """
        owning = self.owning or Owning()
        kilowatts, place = None if watts is None else watts / 1000, owning.colocation
        of_place = self._worth(place) if place else 0.0
        texts = [
            *owning.texts(kilowatts, self.currency),
            *(self._rate_texts(place.currency) if place else ()),
        ]
        return owning.upkeep_a_day(bought.amount, kilowatts, self.life_years, of_place), tuple(texts)

    def _nearly(self, gpu: str) -> str:
        """Return a hint at a quote under a similar name: quotes apply only to the driver's exact name."""
        quotes: tuple[GpuPrice | MachinePrice | Rent, ...] = (*self.gpus, *self.machines, *self.rents)
        named = dict.fromkeys(name for quote in quotes for name in quote.gpu)
        shorter = (name for name in named if name != gpu and set() < _words(name) <= _words(gpu))
        short = None if " + " in gpu else next(shorter, None)
        return f' (there is one for "{short}": a quote must have the driver\'s exact name)' if short else ""

    def _worth(self, quote: Converted) -> float:
        rate = self.rate(quote.currency)
        assert rate is not None  # parse_prices refuses a currency that has no rate
        return quote.price * rate

    def _quote_texts(self, quote: Quote, gpu: str) -> tuple[str, ...]:
        """Put the quote in words, with source and date, and the exchange rate if it needs one."""
        currency = quote.currency or self.currency
        amount = money_text(quote.price, currency)
        text = f"{_priced_item(quote, gpu, amount)}: {_origin(quote)}, {quote.date}"
        return (text, *self._rate_texts(currency))

    def _rate_texts(self, currency: str | None) -> Iterator[str]:
        """Yield the exchange rate of a currency in words, unless it is the file's own."""
        for rate in self.exchange:
            if rate.currency == currency != self.currency:
                worth = f"{figures(rate.price, 6)} {self.currency}"
                yield f"{rate.currency} 1 is worth {worth}: {rate.source}, {rate.date}"


def _origin(quote: Quote) -> str:
    """Say where a quote is from; a rent that may end at any time or binds for long is named so."""
    if not isinstance(quote, Rent):
        return quote.source
    kind = "" if quote.kind == "on-demand" else quote.kind
    return ", ".join(filter(None, (quote.provider, kind, quote.source)))


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _priced_item(quote: Quote, gpu: str, amount: str) -> str:
    """Name the item that the amount pays for: a GPU, a machine, an hour or a kWh."""
    match quote:
        case GpuPrice():
            return f"{amount} for each {gpu}, without a machine"
        case SystemPrice():
            return f"{amount} for a machine for {count_text(quote.gpus, 'GPU')}, without them"
        case MachinePrice():
            return f"{amount} for a machine with {quote.gpus}x {gpu}"
        case Rent(gpus=None):
            return f"{amount} an hour for each {gpu}"
        case Rent():
            return f"{amount} an hour for a machine with {quote.gpus}x {gpu}"
        case Electricity():
            overhead = f", of which {quote.overhead:g} are paid for each that the GPUs draw"
            return f"{amount} for a kWh{overhead if quote.overhead != 1 else ''}"


@dataclass(frozen=True, slots=True)
class Priced:
    """An amount in the book's currency."""

    amount: float
    quotes: tuple[str, ...]  # that the amount comes from, each with source and date
    gpus: int  # of the machine that is paid for: as many as are needed, or more


@dataclass(frozen=True, slots=True)
class Gap:
    """The reason why there is no price."""

    reason: str


def for_nodes(price: Priced | Gap, nodes: int) -> Priced | Gap:
    """Return the price of all nodes that trained together, given the price of one node."""
    return replace(price, amount=price.amount * nodes) if isinstance(price, Priced) else price
