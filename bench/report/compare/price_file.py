"""Read a file of prices, reporting every mistake at once, and add the shipped quotes.

The shipped quotes are the paper's prices to buy, of September 2024 (data/prices.json), and list prices of
providers (data/rents.json). Quotes in the user's file take precedence, and the file may exclude the shipped
ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from bench.base.errors import BadInput, Mistake
from bench.base.files import read_bounded
from bench.base.form_mistakes import form_mistakes, written_json
from bench.base.kinds_of_file import PRICES
from bench.base.shipped_data import read_data
from bench.base.strict_json import from_json
from bench.report.compare.owning import Colocation, Percentage
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
LARGEST_PRICE = 1e12  # in the file's currency
DATE = "allowed: the quote's day, YYYY-MM-DD"
Dated = Quote | Exchange | Colocation | Percentage
Q = TypeVar("Q", GpuPrice, SystemPrice, MachinePrice, Rent)


@cache
def shipped_prices() -> PriceBook:
    """Return the quotes of data/prices.json and the rents of data/rents.json as one book; read once."""
    bought = parse_prices(read_data("prices.json"), "data/prices.json")
    rented = parse_prices(read_data("rents.json"), "data/rents.json")
    return replace(bought, rents=rented.rents)


def load_prices(path: Path | None) -> PriceBook:
    """Load the user's quotes and the shipped ones, or the shipped ones alone if there is no file."""
    if path is None:
        return shipped_prices()
    too_large = "larger than 1 MiB: not a file of prices"
    data = read_bounded(path, MAX_BYTES, what="the prices", too_large=too_large, wanted=PRICES)
    document = written_json(data, str(path), PRICES)
    book = parse_prices(document, str(path))
    return _with_shipped(book, shipped_prices(), str(path)) if book.shipped else book


def parse_prices(document: Any, where: str) -> PriceBook:
    """Decode a price document; BadInput with every mistake at once."""
    of_form = tuple(form_mistakes(PriceBook, document))
    mistakes = (*of_form, *_meaning_mistakes(document, {mistake.path for mistake in of_form}))
    if mistakes:
        advice = "docs/prices.md has the form, with an example" if of_form else None
        raise BadInput.of(mistakes, where, advice)
    return from_json(PriceBook, document)


LISTS: Mapping[str, Any] = {
    "gpus": GpuPrice,
    "systems": SystemPrice,
    "machines": MachinePrice,
    "rents": Rent,
    "exchange": Exchange,
}


COSTS_OF_OWNING: Mapping[str, Any] = {
    "capital": Percentage,
    "colocation": Colocation,
    "operations": Percentage,
    "residual": Percentage,
}


def _meaning_mistakes(document: Any, malformed: Set[str]) -> Iterator[Mistake]:
    """Yield mistakes of meaning in the parts of the document whose types are right."""
    if not isinstance(document, dict):
        return
    quotes = list(_quotes(document, malformed))
    if "/currency" not in malformed:
        yield from _currency_mistakes(document["currency"], quotes)
    life_years = None if "/life_years" in malformed else document.get("life_years")
    if life_years is not None and not 0 < life_years <= 100:
        yield Mistake(
            "/life_years", f"{life_years} is not a machine's lifetime", "allowed: more than 0, at most 100"
        )
    for path, quote in quotes:
        yield from _quote_mistakes(path, quote)
    yield from _duplicate_mistakes(quotes)


def _quotes(document: Mapping[str, Any], malformed: Set[str]) -> Iterator[tuple[str, Dated]]:
    """Yield every well-formed quote, with its path in the document."""
    places: list[tuple[str, Any, Any]] = []
    for name, kind in LISTS.items():
        if f"/{name}" not in malformed:
            places += [(f"/{name}/{i}", kind, quote) for i, quote in enumerate(document.get(name, ()))]
    if document.get("electricity") is not None:
        places.append(("/electricity", Electricity, document["electricity"]))
    if "/owning" not in malformed:
        owning = document.get("owning") or {}
        for name, kind in COSTS_OF_OWNING.items():
            if owning.get(name) is not None:
                places.append((f"/owning/{name}", kind, owning[name]))
    for path, kind, quote in places:
        if not any(f"{wrong}/".startswith(f"{path}/") for wrong in malformed):
            yield path, from_json(kind, quote)


def _duplicate_mistakes(quotes: Sequence[tuple[str, Dated]]) -> Iterator[Mistake]:
    """Refuse two prices for the same item. Several rents are allowed: the cheapest counts."""
    paths: dict[tuple[object, ...], str] = {}
    for path, quote in quotes:
        keys = list(_items(quote))
        if before := next((paths[key] for key in keys if key in paths), None):
            yield Mistake(path, f"prices the same item as {before}", "allowed: one price for each")
        paths |= dict.fromkeys(keys, path)


def _items(quote: Dated) -> Iterator[tuple[object, ...]]:
    """Yield keys of the items that a quote prices; nothing for rents, electricity and costs of owning."""
    match quote:
        case GpuPrice():
            yield from ((name,) for name in quote.gpu)
        case MachinePrice():
            yield from ((name, quote.gpus) for name in quote.gpu)
        case SystemPrice():
            yield ("system", quote.gpus)
        case Exchange():
            yield ("exchange", quote.currency)


def _currency_mistakes(currency: str, quotes: Sequence[tuple[str, Dated]]) -> Iterator[Mistake]:
    if not re.fullmatch("[A-Z]{3}", currency):
        yield Mistake("/currency", f'"{currency}" is no currency', 'allowed: three letters, as in "USD"')
    convertible = {None, currency, *(rate.currency for _, rate in quotes if isinstance(rate, Exchange))}
    for path, quote in quotes:
        if isinstance(quote, Exchange) and quote.currency == currency:
            yield Mistake(f"{path}/currency", f"{currency} is the file's own", "allowed: another currency")
        if not isinstance(quote, Percentage) and quote.currency not in convertible:
            yield Mistake(
                f"{path}/currency",
                f"{quote.currency} among prices in {currency}",
                f"allowed: {currency}, or an entry in exchange for {quote.currency}",
            )


def _quote_mistakes(path: str, quote: Dated) -> Iterator[Mistake]:
    if isinstance(quote, Percentage):
        if not 0 <= quote.percent < 100:
            yield Mistake(f"{path}/percent", f"{quote.percent}", "allowed: 0 or more, less than 100")
    elif not 0 < quote.price <= LARGEST_PRICE:
        yield Mistake(f"{path}/price", f"{quote.price} is no price", "allowed: more than 0")
    if (day := _day(quote.date)) is None:
        yield Mistake(f"{path}/date", f'"{quote.date}" is no date', DATE)
    elif day > date.today() + timedelta(days=1):  # in some time zones tomorrow has begun
        yield Mistake(f"{path}/date", f"{quote.date} is in the future", DATE)
    if not quote.source.strip():
        yield Mistake(f"{path}/source", "is empty", "allowed: where the quote is from")
    count = getattr(quote, "gpus", None)
    if count is not None and count < 1:
        yield Mistake(f"{path}/gpus", f"{count} GPUs", "allowed: at least 1")
    if getattr(quote, "gpu", None) == ():
        yield Mistake(f"{path}/gpu", "names no GPU", "allowed: the driver's names")
    if isinstance(quote, Electricity | Colocation) and not 1 <= quote.overhead <= 10:
        yield Mistake(f"{path}/overhead", f"{quote.overhead}", "allowed: 1 to 10")


def _day(text: str) -> date | None:
    """Parse YYYY-MM-DD; None for anything else, including other ISO forms such as 20260601."""
    try:
        return date.fromisoformat(text) if len(text) == 10 and text[7] == "-" else None
    except ValueError:
        return None


def _with_shipped(book: PriceBook, shipped: PriceBook, where: str) -> PriceBook:
    """Append the shipped quotes to the user's; BadInput if their currency has no exchange rate."""
    if book.rate(shipped.currency) is None:
        raise BadInput(
            f"its prices are in {book.currency}, the shipped ones in {shipped.currency}",
            where=where,
            advice=f'add {shipped.currency} to "exchange", or set "shipped": false to do without them',
        )

    def in_shipped_currency(quotes: tuple[Q, ...]) -> tuple[Q, ...]:
        return tuple(replace(quote, currency=shipped.currency) for quote in quotes)

    # The user's system for a number of GPUs replaces the shipped one for that number, and the user's rents of
    # a GPU replace the shipped ones of that GPU.
    priced = {system.gpus for system in book.systems}
    rented = {name for rent in book.rents for name in rent.gpu}
    rents = tuple(rent for rent in in_shipped_currency(shipped.rents) if not rented & {*rent.gpu})
    systems = tuple(system for system in in_shipped_currency(shipped.systems) if system.gpus not in priced)
    return replace(
        book,
        gpus=book.gpus + in_shipped_currency(shipped.gpus),
        systems=book.systems + systems,
        machines=book.machines + in_shipped_currency(shipped.machines),
        rents=book.rents + rents,
    )
