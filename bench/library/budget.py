"""A budget in dollars, in the currency of the prices."""

from __future__ import annotations

from bench.base.errors import BadInput
from bench.base.quantities import positive
from bench.library.given import quantity
from bench.report.compare.prices import PriceBook


def budget_of(given: float | str | None, book: PriceBook) -> float | None:
    """Convert dollars to the currency of the price book; BadInput if it has no exchange rate."""
    if given is None:
        return None
    dollars = quantity("budget_usd", given, positive)
    if (rate := book.rate("USD")) is not None:
        return dollars * rate
    advice = 'add USD, the value of one dollar, to "exchange" in the price file'
    raise BadInput(f"--budget-usd, but the prices are in {book.currency}", advice=advice)
