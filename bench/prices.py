"""What machines cost to buy, to rent and to feed: dated, sourced quotes in one currency.

The shipped quotes (data/prices.json) are the paper's, of September 2024. A user's file goes before them,
and may leave them out. What no quote covers has no price: nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from bench.catalogue import read_data
from bench.codec import DecodeError, from_json, strict_loads
from bench.errors import BadInput, Mistake
from bench.faults import faults

MAX_BYTES = 1 << 20
LARGEST = 1e12


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

    def to_buy(self, gpu: str, count: int) -> Priced | Gap:
        """A machine with so many of this GPU: a quote for the whole, or for GPUs and what is around them."""
        for machine in self.machines:
            if gpu in machine.gpu and machine.gpus == count:
                return Priced(machine.price, (machine.source,), (machine.date,))
        single = next((quote for quote in self.gpus if gpu in quote.gpu), None)
        if single is None:
            return Gap(f"no price for {gpu}")
        around = [system for system in self.systems if system.gpus >= count]
        if not around:
            return Gap(f"no price for a system that holds {count} GPUs")
        system = min(around, key=lambda s: s.gpus)
        sources, dates = (single.source, system.source), (single.date, system.date)
        return Priced(count * single.price + system.price, sources, dates)

    def to_rent(self, gpu: str, count: int) -> Priced | Gap:
        """An hour of a machine with at least so many, at the cheapest that is quoted."""
        offers = [
            Priced(rent.price * (count if rent.gpus is None else 1), (rent.source,), (rent.date,))
            for rent in self.rents
            if gpu in rent.gpu and (rent.gpus is None or rent.gpus >= count)
        ]
        return min(offers, key=lambda p: p.amount, default=None) or Gap(
            f"no rent for {gpu if ' + ' in gpu else f'{count}x {gpu}'}"  # of several kinds it says how many
        )

    def energy_cost(self, kwh: float) -> float | None:
        """Of what the GPUs drew; None without a price."""
        if self.electricity is None:
            return None
        return kwh * self.electricity.overhead * self.electricity.price


@dataclass(frozen=True, slots=True)
class Priced:
    amount: float
    sources: tuple[str, ...]
    dates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Why there is no price."""

    reason: str


@cache
def shipped_prices() -> PriceBook:
    return parse_prices(read_data("prices.json"), "data/prices.json")


def load_prices(path: Path | None) -> PriceBook:
    """The user's quotes, with the shipped ones behind them; without a file the shipped ones alone."""
    if path is None:
        return shipped_prices()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"the prices cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) > MAX_BYTES:
        raise BadInput("larger than 1 MiB: these are no prices", where=str(path))
    try:
        document = strict_loads(data)
    except DecodeError as error:
        raise BadInput(str(error), where=str(path)) from None
    book = parse_prices(document, str(path))
    return _behind(book, shipped_prices(), str(path)) if book.shipped else book


def parse_prices(document: Any, where: str) -> PriceBook:
    """Every quote in the file's currency; BadInput with every mistake at once."""
    formless = tuple(faults(PriceBook, document))
    mistakes = (*formless, *_senseless(document, {mistake.path for mistake in formless}))
    if mistakes:
        advice = "docs/prices.md has the form, with an example" if formless else None
        raise BadInput.of(mistakes, where, advice)
    return _converted(from_json(PriceBook, document))


Quote = GpuPrice | SystemPrice | MachinePrice | Rent | Electricity
Q = TypeVar("Q", GpuPrice, SystemPrice, MachinePrice, Rent, Electricity)
LISTS: Mapping[str, Any] = {
    "gpus": GpuPrice, "systems": SystemPrice, "machines": MachinePrice, "rents": Rent, "exchange": Exchange,
}  # fmt: skip


def _senseless(document: Any, formless: Set[str]) -> Iterator[Mistake]:
    """Of whatever has its form."""
    if not isinstance(document, dict):
        return
    quotes = list(_quotes(document, formless))
    if "/currency" not in formless:
        yield from _currency_mistakes(document["currency"], quotes)
    life_years = 1 if "/life_years" in formless else document.get("life_years", 1)
    if not 0 < life_years <= 100:
        yield Mistake("/life_years", f"{life_years} is no life of a machine", "allowed: more than 0")
    for path, quote in quotes:
        yield from _quote_mistakes(path, quote)


def _quotes(document: Mapping[str, Any], formless: Set[str]) -> Iterator[tuple[str, Quote | Exchange]]:
    """Each in its place."""
    places = [
        (f"/{name}/{i}", kind, quote)
        for name, kind in LISTS.items() if f"/{name}" not in formless
        for i, quote in enumerate(document.get(name, ()))
    ]  # fmt: skip
    if document.get("electricity") is not None:
        places.append(("/electricity", Electricity, document["electricity"]))
    for path, kind, quote in places:
        if not any(f"{wrong}/".startswith(f"{path}/") for wrong in formless):
            yield path, from_json(kind, quote)


def _currency_mistakes(currency: str, quotes: Sequence[tuple[str, Quote | Exchange]]) -> Iterator[Mistake]:
    if not re.fullmatch("[A-Z]{3}", currency):
        yield Mistake("/currency", f'"{currency}" is no currency', 'allowed: three letters, as in "USD"')
    known = {None, currency, *(rate.currency for _, rate in quotes if isinstance(rate, Exchange))}
    for path, quote in quotes:
        if quote.currency not in known:
            yield Mistake(
                f"{path}/currency",
                f"{quote.currency} among prices in {currency}",
                f"allowed: {currency}, or an entry in exchange for {quote.currency}",
            )


def _quote_mistakes(path: str, quote: Quote | Exchange) -> Iterator[Mistake]:
    if not (math.isfinite(quote.price) and 0 < quote.price <= LARGEST):
        yield Mistake(f"{path}/price", f"{quote.price} is no price", "allowed: more than 0")
    try:
        date.fromisoformat(quote.date)
    except ValueError:
        yield Mistake(f"{path}/date", f'"{quote.date}" is no date', "allowed: the quote's day, YYYY-MM-DD")
    if not quote.source.strip():
        yield Mistake(f"{path}/source", "is empty", "allowed: where the quote is from")
    count = getattr(quote, "gpus", None)
    if count is not None and count < 1:
        yield Mistake(f"{path}/gpus", f"{count} GPUs", "allowed: at least 1")
    if getattr(quote, "gpu", True) == ():
        yield Mistake(f"{path}/gpu", "names no GPU", "allowed: the driver's names")
    if isinstance(quote, Electricity) and not 1 <= quote.overhead <= 10:
        yield Mistake(f"{path}/overhead", f"{quote.overhead}", "allowed: 1 to 10")


def _converted(book: PriceBook) -> PriceBook:
    rates: dict[str | None, float] = {rate.currency: rate.price for rate in book.exchange}
    rates |= {book.currency: 1.0, None: 1.0}

    def all_of(quotes: Iterable[Q]) -> tuple[Q, ...]:
        return tuple(replace(q, price=q.price * rates[q.currency], currency=None) for q in quotes)

    electricity = all_of([book.electricity])[0] if book.electricity else None
    return replace(
        book, gpus=all_of(book.gpus), systems=all_of(book.systems), machines=all_of(book.machines),
        rents=all_of(book.rents), electricity=electricity,
    )  # fmt: skip


def _behind(book: PriceBook, shipped: PriceBook, where: str) -> PriceBook:
    """The user's quotes first; the shipped ones in their currency, where they say what that is worth."""
    rates = {exchange.currency: exchange.price for exchange in book.exchange} | {book.currency: 1.0}
    if shipped.currency not in rates:
        raise BadInput(
            f"its prices are in {book.currency}, the shipped ones in {shipped.currency}",
            where=where,
            advice=f'add {shipped.currency} to "exchange", or "shipped": false to do without them',
        )

    rate = rates[shipped.currency]

    def worth(quotes: tuple[Q, ...]) -> tuple[Q, ...]:
        return tuple(replace(quote, price=quote.price * rate) for quote in quotes)

    # A system of one's own for as many GPUs replaces the shipped one, which may be smaller or larger.
    own = {system.gpus for system in book.systems}
    systems = tuple(system for system in worth(shipped.systems) if system.gpus not in own)
    return replace(
        book,
        gpus=book.gpus + worth(shipped.gpus),
        systems=book.systems + systems,
        machines=book.machines + worth(shipped.machines),
        rents=book.rents + worth(shipped.rents),
    )
