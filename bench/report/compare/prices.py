"""What machines cost to buy, to rent and to feed: dated, sourced quotes in one currency.

A user's file (price_file.py) takes precedence over the shipped quotes. A machine that no quote covers has no
price: none is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from bench.records.text import count_text, figures, money_text


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """One GPU without the machine around it."""

    gpu: tuple[str, ...]  # as the driver spells it; more names at one price
    price: float
    date: str
    source: str
    currency: str | None = None  # None: the file's


@dataclass(frozen=True, slots=True)
class SystemPrice:
    """A machine without GPUs, with room for so many."""

    gpus: int
    price: float
    date: str
    source: str
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class MachinePrice:
    """A whole machine; goes before GPUs and system put together."""

    gpu: tuple[str, ...]
    gpus: int
    price: float
    date: str
    source: str
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Rent:
    """By the hour: a machine with `gpus` GPUs, or, without them, each GPU alone."""

    gpu: tuple[str, ...]
    price: float  # an hour
    date: str
    source: str
    gpus: int | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Electricity:
    """A kilowatt-hour. `overhead` is what reaches the meter for each unit that the GPUs draw."""

    price: float
    date: str
    source: str
    overhead: float = 1.0
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one unit of `currency` is worth in the file's currency."""

    currency: str
    price: float
    date: str
    source: str


Quote = GpuPrice | SystemPrice | MachinePrice | Rent | Electricity


@dataclass(frozen=True, slots=True)
class PriceBook:
    currency: str
    schema: Literal["bench/prices/v1"] = "bench/prices/v1"
    life_years: float = 5.0
    shipped: bool = True  # the shipped quotes stand behind these
    gpus: tuple[GpuPrice, ...] = ()
    systems: tuple[SystemPrice, ...] = ()
    machines: tuple[MachinePrice, ...] = ()
    rents: tuple[Rent, ...] = ()
    electricity: Electricity | None = None
    exchange: tuple[Exchange, ...] = ()

    @property
    def life_days(self) -> float:
        return self.life_years * 365

    def rate(self, currency: str | None) -> float | None:
        """What one unit of it is worth in the file's currency; None where nothing says so."""
        if currency in (None, self.currency):
            return 1.0
        return next((rate.price for rate in self.exchange if rate.currency == currency), None)

    def to_buy(self, gpu: str, count: int) -> Priced | Gap:
        """A machine with so many of this GPU: a quote for the whole, or for GPUs and what is around them."""
        for machine in self.machines:
            if gpu in machine.gpu and machine.gpus == count:
                return Priced(self._worth(machine), self._told(machine, gpu), count)
        single = next((quote for quote in self.gpus if gpu in quote.gpu), None)
        if single is None:
            return Gap(f"no price for {gpu}{self._nearly(gpu)}")
        around = [system for system in self.systems if system.gpus >= count]
        if not around:
            return Gap(f"no price for a system that holds {count} GPUs")
        system = min(around, key=lambda s: s.gpus)
        told = (*self._told(single, gpu), *self._told(system, gpu))
        return Priced(count * self._worth(single) + self._worth(system), tuple(dict.fromkeys(told)), count)

    def to_rent(self, gpu: str, count: int) -> Priced | Gap:
        """An hour of a machine with at least so many, at the cheapest that is quoted."""
        offers = [
            Priced(
                self._worth(rent) * (count if rent.gpus is None else 1),
                self._told(rent, gpu),
                rent.gpus or count,
            )
            for rent in self.rents
            if gpu in rent.gpu and (rent.gpus is None or rent.gpus >= count)
        ]
        return min(offers, key=lambda p: p.amount, default=None) or Gap(
            # of several kinds it says how many
            f"no rent for {gpu if ' + ' in gpu else f'{count}x {gpu}'}{self._nearly(gpu)}"
        )

    def to_feed(self, kwh: float) -> Priced | None:
        """Electricity for what the GPUs drew; None without a price."""
        if (fed := self.electricity) is None:
            return None
        return Priced(kwh * fed.overhead * self._worth(fed), self._told(fed, ""), 0)

    def _nearly(self, gpu: str) -> str:
        """A quote counts under the driver's name alone; a shorter one must not be lost in silence."""
        quotes: tuple[GpuPrice | MachinePrice | Rent, ...] = (*self.gpus, *self.machines, *self.rents)
        named = dict.fromkeys(name for quote in quotes for name in quote.gpu)
        found = (name for name in named if name != gpu and set() < _words(name) <= _words(gpu))
        short = None if " + " in gpu else next(found, None)
        return f' (there is one for "{short}": it counts under the driver\'s name alone)' if short else ""

    def _worth(self, quote: Quote) -> float:
        rate = self.rate(quote.currency)
        assert rate is not None  # a file is refused without
        return quote.price * rate

    def _told(self, quote: Quote, gpu: str) -> tuple[str, ...]:
        """What was quoted for how much, by whom and when; and what its currency is worth."""
        currency = quote.currency or self.currency
        amount = money_text(quote.price, currency)
        told = f"{_of(quote, gpu, amount)}: {quote.source}, {quote.date}"
        rates = (rate for rate in self.exchange if rate.currency == currency != self.currency)
        worth = (
            f"{rate.currency} 1 is worth {figures(rate.price, 6)} {self.currency}: {rate.source}, {rate.date}"
            for rate in rates
        )
        return (told, *worth)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _of(quote: Quote, gpu: str, amount: str) -> str:
    """Whether a price is that of a GPU or of a machine is never left to guess."""
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
            more = f", {quote.overhead:g} of them for each that the GPUs draw" if quote.overhead != 1 else ""
            return f"{amount} for a kWh{more}"


@dataclass(frozen=True, slots=True)
class Priced:
    amount: float
    quotes: tuple[str, ...]  # what it rests on, each with its source and date
    gpus: int  # of the machine that is paid for: as many as are needed, or more


@dataclass(frozen=True, slots=True)
class Gap:
    """Why there is no price."""

    reason: str
