"""A file of prices, read: every mistake at once, the shipped quotes behind.

The shipped quotes (data/prices.json) are the paper's, of September 2024. A user's file goes before them,
and may leave them out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from bench.base.errors import BadInput, Mistake
from bench.base.files import read_bounded
from bench.base.form_mistakes import form_mistakes
from bench.base.shipped_data import read_data
from bench.base.strict_json import DecodeError, from_json, strict_loads
from bench.report.compare.prices import (
    Electricity,
    Exchange,
    GpuPrice,
    MachinePrice,
    PriceBook,
    Quote,
    Rent,
    SystemPrice,
)

MAX_BYTES = 1 << 20
LARGEST = 1e12
DATE = "allowed: the quote's day, YYYY-MM-DD"
Q = TypeVar("Q", GpuPrice, SystemPrice, MachinePrice, Rent)


@cache
def shipped_prices() -> PriceBook:
    return parse_prices(read_data("prices.json"), "data/prices.json")


def load_prices(path: Path | None) -> PriceBook:
    """The user's quotes, with the shipped ones behind them; without a file the shipped ones alone."""
    if path is None:
        return shipped_prices()
    data = read_bounded(
        path, MAX_BYTES, what="the prices", too_large="larger than 1 MiB: these are no prices"
    )
    try:
        document = strict_loads(data)
    except DecodeError as error:
        raise BadInput(str(error), where=str(path)) from None
    book = parse_prices(document, str(path))
    return _behind(book, shipped_prices(), str(path)) if book.shipped else book


def parse_prices(document: Any, where: str) -> PriceBook:
    """Every quote in the file's currency; BadInput with every mistake at once."""
    formless = tuple(form_mistakes(PriceBook, document))
    mistakes = (*formless, *_senseless(document, {mistake.path for mistake in formless}))
    if mistakes:
        advice = "docs/prices.md has the form, with an example" if formless else None
        raise BadInput.of(mistakes, where, advice)
    return from_json(PriceBook, document)


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
    yield from _doubles(quotes)


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


def _doubles(quotes: Sequence[tuple[str, Quote | Exchange]]) -> Iterator[Mistake]:
    """Of two prices for the same nobody could say which one counts. Of rents the cheapest does."""
    seen: dict[tuple[object, ...], str] = {}
    for path, quote in quotes:
        keys = list(_priced(quote))
        if before := next((seen[key] for key in keys if key in seen), None):
            yield Mistake(path, f"is for the same as {before}", "allowed: one price for each")
        seen |= dict.fromkeys(keys, path)


def _priced(quote: Quote | Exchange) -> Iterator[tuple[object, ...]]:
    """What it is the price of."""
    match quote:
        case GpuPrice():
            yield from ((name,) for name in quote.gpu)
        case MachinePrice():
            yield from ((name, quote.gpus) for name in quote.gpu)
        case SystemPrice():
            yield ("system", quote.gpus)
        case Exchange():
            yield ("exchange", quote.currency)


def _currency_mistakes(currency: str, quotes: Sequence[tuple[str, Quote | Exchange]]) -> Iterator[Mistake]:
    if not re.fullmatch("[A-Z]{3}", currency):
        yield Mistake("/currency", f'"{currency}" is no currency', 'allowed: three letters, as in "USD"')
    known = {None, currency, *(rate.currency for _, rate in quotes if isinstance(rate, Exchange))}
    for path, quote in quotes:
        if isinstance(quote, Exchange) and quote.currency == currency:
            yield Mistake(f"{path}/currency", f"{currency} is the file's own", "allowed: another currency")
        if quote.currency not in known:
            yield Mistake(
                f"{path}/currency",
                f"{quote.currency} among prices in {currency}",
                f"allowed: {currency}, or an entry in exchange for {quote.currency}",
            )


def _quote_mistakes(path: str, quote: Quote | Exchange) -> Iterator[Mistake]:
    if not (math.isfinite(quote.price) and 0 < quote.price <= LARGEST):
        yield Mistake(f"{path}/price", f"{quote.price} is no price", "allowed: more than 0")
    if (day := _day(quote.date)) is None:
        yield Mistake(f"{path}/date", f'"{quote.date}" is no date', DATE)
    elif day > date.today() + timedelta(days=1):  # where it is tomorrow already
        yield Mistake(f"{path}/date", f"{quote.date} is still to come", DATE)
    if not quote.source.strip():
        yield Mistake(f"{path}/source", "is empty", "allowed: where the quote is from")
    count = getattr(quote, "gpus", None)
    if count is not None and count < 1:
        yield Mistake(f"{path}/gpus", f"{count} GPUs", "allowed: at least 1")
    if getattr(quote, "gpu", True) == ():
        yield Mistake(f"{path}/gpu", "names no GPU", "allowed: the driver's names")
    if isinstance(quote, Electricity) and not 1 <= quote.overhead <= 10:
        yield Mistake(f"{path}/overhead", f"{quote.overhead}", "allowed: 1 to 10")


def _day(text: str) -> date | None:
    """Of YYYY-MM-DD alone: 20260601 and 2026-W23-1 are dates too, which nobody reads at a glance."""
    try:
        return date.fromisoformat(text) if len(text) == 10 and text[7] == "-" else None
    except ValueError:
        return None


def _behind(book: PriceBook, shipped: PriceBook, where: str) -> PriceBook:
    """The user's quotes first; the shipped ones in their currency, where they say what that is worth."""
    if book.rate(shipped.currency) is None:
        raise BadInput(
            f"its prices are in {book.currency}, the shipped ones in {shipped.currency}",
            where=where,
            advice=f'add {shipped.currency} to "exchange", or "shipped": false to do without them',
        )

    def named(quotes: tuple[Q, ...]) -> tuple[Q, ...]:
        return tuple(replace(quote, currency=shipped.currency) for quote in quotes)

    # A system of one's own for as many GPUs replaces the shipped one, which may be smaller or larger.
    own = {system.gpus for system in book.systems}
    systems = tuple(system for system in named(shipped.systems) if system.gpus not in own)
    return replace(
        book,
        gpus=book.gpus + named(shipped.gpus),
        systems=book.systems + systems,
        machines=book.machines + named(shipped.machines),
        rents=book.rents + named(shipped.rents),
    )
