"""Amounts, shares and times as people write them: what each text means, and why others are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo

import pytest

from bench.base.quantities import NotAQuantity, count, days, deadline, duration, overhead, percent, positive

DEADLINE_FORMS = "write 14d, 36h, 2w, or a date such as 2027-01-31"
NO_DURATION = "{} is not a duration: write 90s, 60m, 2h or 7d"


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (positive, "20,000", 20_000.0),
        (positive, "1,234,567.5", 1_234_567.5),
        (positive, "0.01", 0.01),
        (positive, "1e3", 1000.0),
        (overhead, "1", 1.0),
        (overhead, "1.5", 1.5),
        (count, "1", 1),
        (count, "12", 12),
        (percent, "85", 0.85),
        (percent, "85%", 0.85),
        (percent, "100", 1.0),
        (percent, "0.5%", 0.005),
        (days, "14", 14.0),
        (days, "14d", 14.0),
        (days, "36h", 1.5),
        (days, "1,000h", 1000 / 24),
        (deadline, "14", 14.0),
        (deadline, "36h", 1.5),
        (deadline, "2w", 14.0),
        (deadline, "0.5w", 3.5),
        (duration, "90s", 90.0),
        (duration, "60m", 3600.0),
        (duration, "2h", 7200.0),
        (duration, "7d", 604_800.0),
        (duration, "0.5s", 0.5),
    ],
)
def test_a_text_means_this_amount(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "texts", "why"),
    [
        (positive, ("much", "", "nan", "inf", "-inf", "1e999", "12$"), "{} is not a number"),
        (positive, ("0", "-1", "-0.01"), "{} is not more than 0"),
        (overhead, ("0.99", "0.5"), "{} is less than 1: a node draws no less than its GPUs"),
        (overhead, ("0", "-2"), "{} is not more than 0"),
        (count, ("0", "-1", "1.5", "", "two", "1e3"), "{} is not a whole number of at least 1"),
        (percent, ("100.01", "101%"), "{} is more than 100%"),
        (duration, ("90", "0s", "-5m", "infd", "nanh", "", "m", "5w"), NO_DURATION),
        (deadline, ("2027-02-30", "2027-13-01"), "{} is not a date: write 2027-01-31"),
        (deadline, ("0", "0w", "0h"), None),
        (deadline, ("soon", "2027-1-31", "2027-01-31 "), f"{{}} is not a number: {DEADLINE_FORMS}"),
    ],
)  # fmt: skip
def test_other_texts_are_refused_by_their_own_reason(
    parse: Callable[[str], float], texts: tuple[str, ...], why: str | None
) -> None:
    for text in texts:
        with pytest.raises(NotAQuantity) as refused:
            parse(text)
        if why is not None:
            assert str(refused.value) == why.format(repr(text))


def test_a_share_or_a_time_of_nothing_is_named_without_its_unit() -> None:
    for parse, text, more in (
        (percent, "0%", ""), (days, "0h", ""), (days, "0d", ""), (deadline, "0w", f": {DEADLINE_FORMS}"),
    ):  # fmt: skip
        with pytest.raises(NotAQuantity, match=f"^'0' is not more than 0{more}$"):
            parse(text)


class Noon(datetime):
    """A clock that stands at noon of 30 January 2027."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Noon:
        return cls(2027, 1, 30, 12, tzinfo=tz)


def test_a_date_is_the_days_until_its_end_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datetime.datetime", Noon)
    assert [deadline(f"2027-0{day}") for day in ("1-30", "1-31", "2-28")] == [0.5, 1.5, 29.5]
    for day in ("2027-01-29", "2020-01-01"):
        with pytest.raises(NotAQuantity, match=f"^{day} is over$"):
            deadline(day)


def test_a_date_is_over_at_its_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datetime.datetime", Noon)
    monkeypatch.setattr(Noon, "now", classmethod(lambda cls, tz: cls(2027, 1, 31, tzinfo=tz)))
    with pytest.raises(NotAQuantity, match=r"^2027-01-30 is over$"):
        deadline("2027-01-30")
    assert deadline("2027-01-31") == 1.0
