"""Costs of owning a machine beside its price: capital, colocation, operations, residual value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.base.errors import BadInput
from bench.cli.compare import CompareArguments, collect
from bench.cli.main import main
from bench.report.compare.owning import (
    Colocation,
    Owning,
    Percentage,
    annuity,
)
from bench.report.compare.price_file import load_prices
from bench.report.compare.prices import PriceBook, Priced
from tests.report.made import bundle

WHEN = {"date": "2026-06-01", "source": "a quote"}
QUOTED = ("2026-06-01", "a quote")
H100 = "NVIDIA H100 80GB HBM3"


def upkeep(owning: Owning, kilowatts: float | None = 10.0) -> float:
    """Return the upkeep of a year of a machine for 100,000 over 5 years."""
    return 365 * owning.upkeep_a_day(100_000, kilowatts, 5, 200)


def test_without_any_cost_nothing_is_added() -> None:
    assert upkeep(Owning()) == pytest.approx(0)


def test_each_cost_is_added_by_its_definition() -> None:
    assert upkeep(Owning(operations=Percentage(5, *QUOTED))) == pytest.approx(5_000)
    assert upkeep(Owning(residual=Percentage(20, *QUOTED))) == pytest.approx(-4_000)
    colocation = Colocation(200, *QUOTED, overhead=1.5)
    assert upkeep(Owning(colocation=colocation)) == pytest.approx(12 * 200 * 10 * 1.5)
    assert upkeep(Owning(colocation=colocation), kilowatts=None) == pytest.approx(0)
    loan = 100_000 * 0.08 / (1 - 1.08**-5)  # what a bank asks for each year
    assert upkeep(Owning(capital=Percentage(8, *QUOTED))) == pytest.approx(loan - 20_000)


@pytest.mark.parametrize(
    ("owning", "text"),
    [
        (Owning(), None),
        (Owning(capital=Percentage(8, *QUOTED)), "8% a year for the capital: a quote, 2026-06-01"),
        (
            Owning(colocation=Colocation(200, *QUOTED, overhead=1.5)),
            "$200 a month for a kW of colocation, 15 kW booked: a quote, 2026-06-01",
        ),
        (
            Owning(operations=Percentage(5, *QUOTED)),
            "5% of the price a year for operations: a quote, 2026-06-01",
        ),
        (
            Owning(residual=Percentage(20, *QUOTED)),
            "20% of the price at the end of its life: a quote, 2026-06-01",
        ),
    ],
)
def test_each_cost_is_told_with_its_source_and_day(owning: Owning, text: str | None) -> None:
    assert list(owning.texts(10.0, "USD")) == ([] if text is None else [text])


@given(
    price=st.floats(1, 1e9), share=st.floats(0, 0.99), rate=st.floats(1e-4, 0.99), years=st.floats(0.5, 30)
)
def test_yearly_payments_are_worth_the_price_less_the_residual_value(
    price: float, share: float, rate: float, years: float
) -> None:
    payment = annuity(price, share * price, rate, years)
    discount = (1 + rate) ** -years
    assert payment * (1 - discount) / rate == pytest.approx(price - share * price * discount, rel=1e-6)
    assert payment >= annuity(price, share * price, 0, years) * (1 - 1e-9)


def test_a_small_interest_is_nearly_none() -> None:
    assert annuity(100, 20, 1e-9, 5) == pytest.approx(annuity(100, 20, 0, 5), rel=1e-5)


def document(**owning: Any) -> dict[str, Any]:
    return {"schema": "bench/prices/v1", "currency": "USD", "owning": owning}


def book(folder: Path, **more: Any) -> PriceBook:
    path = folder / "prices.json"
    path.write_text(json.dumps(more))
    return load_prices(path)


def test_quotes_of_owning_are_read_converted_and_told(tmp_path: Path) -> None:
    euros = {"price": 150, "overhead": 1.2, "currency": "EUR", **WHEN}
    exchange = [{"currency": "EUR", "price": 1.1, **WHEN}]
    read = book(tmp_path, **document(colocation=euros, capital={"percent": 8, **WHEN}), exchange=exchange)
    bought = read.to_buy(H100, 8)
    assert isinstance(bought, Priced)
    a_day, quotes = read.upkeep_of(bought, 5_600)
    alone, _ = book(tmp_path, **document(capital={"percent": 8, **WHEN})).upkeep_of(bought, 5_600)
    assert (a_day - alone) * 365 == pytest.approx(12 * 150 * 1.1 * 5.6 * 1.2)
    assert quotes == (
        "8% a year for the capital: a quote, 2026-06-01",
        "EUR 150 a month for a kW of colocation, 6.72 kW booked: a quote, 2026-06-01",
        "EUR 1 is worth 1.1 USD: a quote, 2026-06-01",
    )
    _, unknown = read.upkeep_of(bought, None)
    assert "the power of these GPUs is not known, so it is left out" in unknown[1]


@pytest.mark.parametrize(
    ("owning", "path"),
    [
        ({"capital": {"percent": -1, **WHEN}}, "/owning/capital/percent"),
        ({"residual": {"percent": 100, **WHEN}}, "/owning/residual/percent"),
        ({"capital": {"percent": 8, "source": "x"}}, "/owning/capital/date"),
        ({"operations": {"percent": 5, "date": "June", "source": "x"}}, "/owning/operations/date"),
        ({"operations": {"percent": 5, "date": "2026-06-01", "source": " "}}, "/owning/operations/source"),
        ({"colocation": {"price": 0, **WHEN}}, "/owning/colocation/price"),
        ({"colocation": {"price": 9, "overhead": 0.5, **WHEN}}, "/owning/colocation/overhead"),
        ({"colocation": {"price": 9, "currency": "EUR", **WHEN}}, "/owning/colocation/currency"),
        ({"insurance": {"percent": 5, **WHEN}}, "/owning/insurance"),
    ],
)
def test_a_mistake_in_a_cost_of_owning_has_its_place(
    tmp_path: Path, owning: dict[str, Any], path: str
) -> None:
    with pytest.raises(BadInput) as raised:
        book(tmp_path, **document(**owning))
    assert path in {mistake.path for mistake in raised.value.mistakes}


def test_a_measured_machine_that_idles_pays_its_upkeep_with_the_days_that_it_trains(tmp_path: Path) -> None:
    measured = bundle(tmp_path / "a.tar", gpu=H100)

    def run_cost(utilisation: float, **owning: Any) -> tuple[float, float]:
        prices = tmp_path / "prices.json"
        prices.write_text(json.dumps(document(**owning)))
        found = collect(CompareArguments((measured,), prices=prices, utilisation=utilisation))
        ((entry,),) = (part.entries for part in found.parts)
        (cost,) = (offer.run_cost for offer in entry.offers if offer.kind == "buy")
        return cost, entry.days.value

    kept = {"operations": {"percent": 10, **WHEN}}
    for utilisation in (1.0, 0.5):
        (plain, days), (more, _) = run_cost(utilisation), run_cost(utilisation, **kept)
        assert more - plain == pytest.approx(0.1 * 31_000 * days / 365 / utilisation)


def test_a_predicted_run_on_an_own_machine_pays_its_days_of_upkeep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text('{"schema": "bench/manifest/v1", "models": ["pythia-1b"]}')

    def row(**owning: Any) -> dict[str, Any]:
        prices = tmp_path / "prices.json"
        prices.write_text(json.dumps(document(**owning)))
        command = ["predict", str(manifest), "--gpu", "8xh100", "--prices", str(prices), "--json"]
        assert main(command) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["predicted"][0]
        return found

    plain, kept = row(), row(operations={"percent": 10, **WHEN})
    price, days = 8 * 30_000 + 10_500, plain["predicted"]["days"]
    more = kept["owned"]["amount"] - plain["owned"]["amount"]
    assert more == pytest.approx(0.1 * price * days / 365)
    assert kept["owned"]["quotes"][-1].startswith("10% of the price a year for operations")
    assert plain["rented"] == kept["rented"]
