"""Read amounts, shares and times as people write them: 20,000, 85%, 14d, 60m, 2027-01-31."""

from __future__ import annotations

import math
import re


class NotAQuantity(ValueError):
    """A text is not a quantity of the expected kind; the message says why."""


def positive(text: str) -> float:
    """Parse a number above zero, such as 20,000."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise NotAQuantity(f"{text!r} is not a number")
    if number <= 0:
        raise NotAQuantity(f"{text!r} is not more than 0")
    return number


def overhead(text: str) -> float:
    """Parse the factor by which a node draws more power than its GPUs: at least 1."""
    number = positive(text)
    if number < 1:
        raise NotAQuantity(f"{text!r} is less than 1: a node draws no less than its GPUs")
    return number


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise NotAQuantity(f"{text!r} is not a whole number of at least 1")
    return int(text)


def percent(text: str) -> float:
    """Parse 85 or 85% to the fraction 0.85."""
    number = positive(text.rstrip("%"))
    if number > 100:
        raise NotAQuantity(f"{text!r} is more than 100%")
    return number / 100


def days(text: str) -> float:
    """Parse 14, 14d or 36h to days."""
    return positive(text[:-1]) / 24 if text.endswith("h") else positive(text.removesuffix("d"))


def deadline(text: str) -> float:
    """Parse 14, 14d, 36h, 2w, or a date such as 2027-01-31, which is its end in UTC, to days from now."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return _days_until(text)
    try:
        return 7 * positive(text[:-1]) if text.endswith("w") else days(text)
    except NotAQuantity as error:
        raise NotAQuantity(f"{error}: write 14d, 36h, 2w, or a date such as 2027-01-31") from None


def _days_until(date: str) -> float:
    from datetime import UTC, datetime, timedelta  # slow to import, and few commands need it

    try:
        end = datetime.fromisoformat(f"{date}T00:00:00+00:00") + timedelta(days=1)
    except ValueError:
        raise NotAQuantity(f"{date!r} is not a date: write 2027-01-31") from None
    left = (end - datetime.now(UTC)) / timedelta(days=1)
    if left <= 0:
        raise NotAQuantity(f"{date} is over")
    return left


def duration(text: str) -> float:
    """Parse 90s, 60m, 2h or 7d to seconds."""
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}.get(text[-1:])
    try:
        seconds = float(text[:-1]) * (scale or 0)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise NotAQuantity(f"{text!r} is not a duration: write 90s, 60m, 2h or 7d")
    return seconds
