"""Prices have a date, a source and one currency; gaps and mixed currencies are named and never filled in."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.base.names import RentKind
from bench.report.compare import price_file
from bench.report.compare.price_file import load_prices, parse_prices, shipped_prices
from bench.report.compare.prices import Electricity, Gap, MachinePrice, PriceBook, Priced, Rent, for_nodes

WHEN = {"date": "2026-06-01", "source": "a quote"}
QUOTED = ("2026-06-01", "a quote")
H100 = "NVIDIA H100 80GB HBM3"


def file(folder: Path, **document: Any) -> Path:
    path = folder / "prices.json"
    path.write_text(json.dumps({"schema": "bench/prices/v1", "currency": "USD", **document}))
    return path


def mistakes(folder: Path, **document: Any) -> dict[str, str]:
    with pytest.raises(BadInput) as caught:
        load_prices(file(folder, **document))
    assert caught.value.exit_code == 2
    return {m.path: m.found for m in caught.value.mistakes}


@pytest.mark.parametrize(
    ("gpu", "count", "price"),
    [
        ("NVIDIA GeForce RTX 3090", 2, 4_100),  # "$4k" in the footnote of page 1
        ("NVIDIA GeForce RTX 3090", 8, 20_900),
        ("NVIDIA RTX A6000", 1, 5_800),
        ("NVIDIA A100-SXM4-80GB", 4, 83_500),  # "$85k"
        ("NVIDIA A100-SXM4-80GB", 8, 162_500),  # "$160k"
        (H100, 4, 127_500),  # "$130k"
        (H100, 8, 250_500),  # "$250k"
    ],
)
def test_the_papers_machines_cost_what_the_paper_says(gpu: str, count: int, price: float) -> None:
    found = shipped_prices().to_buy(gpu, count)
    assert isinstance(found, Priced)
    assert found.amount == price
    assert len(found.quotes) == 2
    assert all(quote.endswith(", 2024-09-21") for quote in found.quotes)


def test_a_machine_without_a_quote_has_no_price() -> None:
    book = shipped_prices()
    assert book.to_buy("NVIDIA H200", 1) == Gap("no purchase price for NVIDIA H200")
    assert book.to_buy(H100, 16) == Gap("no purchase price for a system that holds 16 GPUs")
    assert book.to_rent("NVIDIA L4", 8) == Gap("no rent for 8x NVIDIA L4")
    assert book.to_rent(H100, 16) == Gap(f"no rent for 16x {H100}")
    assert book.to_feed(100) is None


def test_three_gpus_go_into_the_system_for_four() -> None:
    assert shipped_prices().to_buy(H100, 3) == Priced(
        3 * 30_000 + 7_500,
        (
            f"$30,000 for each {H100}, without a machine: {shipped_prices().gpus[3].source}, 2024-09-21",
            "$7,500 for a machine for 4 GPUs, without them: "
            f"{shipped_prices().systems[2].source}, 2024-09-21",
        ),
        3,
    )


def test_own_quotes_replace_the_shipped_ones(tmp_path: Path) -> None:
    book = load_prices(
        file(
            tmp_path,
            gpus=[{"gpu": [H100], "price": 20_000, **WHEN}],
            machines=[{"gpu": [H100], "gpus": 8, "price": 150_000, **WHEN}],
            electricity={"price": 0.2, "overhead": 1.5, **WHEN},
        )
    )
    four, eight = book.to_buy(H100, 4), book.to_buy(H100, 8)
    assert isinstance(four, Priced)
    assert isinstance(eight, Priced)
    assert (four.amount, eight.amount) == (87_500, 150_000)
    assert isinstance(book.to_buy("NVIDIA RTX A6000", 1), Priced)
    fed = book.to_feed(100)
    assert fed is not None
    assert fed.amount == pytest.approx(30)
    assert fed.quotes == (
        "$0.20 for a kWh, of which 1.5 are paid for each that the GPUs draw: a quote, 2026-06-01",
    )
    assert eight.quotes == (f"$150,000 for a machine with 8x {H100}: a quote, 2026-06-01",)


def test_without_the_shipped_quotes_only_own_quotes_remain(tmp_path: Path) -> None:
    book = load_prices(file(tmp_path, shipped=False))
    assert book.to_buy(H100, 1) == Gap(f"no purchase price for {H100}")


def test_rent_is_per_gpu_or_per_machine_whichever_is_cheaper(tmp_path: Path) -> None:
    rents = [{"gpu": [H100], "price": 3, **WHEN}, {"gpu": [H100], "gpus": 8, "price": 20, **WHEN}]
    book = load_prices(file(tmp_path, rents=rents))
    hourly = {count: book.to_rent(H100, count) for count in (1, 7, 8, 9)}
    amounts = {count: p.amount for count, p in hourly.items() if isinstance(p, Priced)}
    assert amounts == {1: 3, 7: 20, 8: 20, 9: 27}
    told = {count: (p.gpus, p.quotes) for count, p in hourly.items() if isinstance(p, Priced)}
    each = (f"$3.00 an hour for each {H100}: a quote, 2026-06-01",)
    whole = (f"$20.00 an hour for a machine with 8x {H100}: a quote, 2026-06-01",)
    assert told == {1: (1, each), 7: (8, whole), 8: (8, whole), 9: (9, each)}


def test_mixed_currencies_need_a_rate(tmp_path: Path) -> None:
    euros = [{"gpu": [H100], "price": 25_000, "currency": "EUR", **WHEN}]
    assert mistakes(tmp_path, gpus=euros) == {"/gpus/0/currency": "EUR among prices in USD"}
    rate = [{"currency": "EUR", "price": 1.1, **WHEN}]
    book = load_prices(file(tmp_path, gpus=euros, exchange=rate))
    single = book.to_buy(H100, 1)
    assert isinstance(single, Priced)
    assert single.amount == pytest.approx(27_500 + 1_000)
    assert single.quotes[0] == f"EUR 25,000 for each {H100}, without a machine: a quote, 2026-06-01"
    assert single.quotes[1] == "EUR 1 is worth 1.1 USD: a quote, 2026-06-01"


def test_each_quote_is_told_with_the_rate_of_its_own_currency_alone(tmp_path: Path) -> None:
    rates = [{"currency": "EUR", "price": 1.1, **WHEN}, {"currency": "GBP", "price": 1.3, **WHEN}]
    quotes = [{"gpu": ["a"], "price": 100, "currency": "GBP", **WHEN}, {"gpu": ["b"], "price": 100, **WHEN}]
    machines = [quote | {"gpus": 1} for quote in quotes]
    book = load_prices(file(tmp_path, machines=machines, exchange=rates))
    pounds = (
        "GBP 100 for a machine with 1x a: a quote, 2026-06-01",
        "GBP 1 is worth 1.3 USD: a quote, 2026-06-01",
    )
    assert book.to_buy("a", 1) == Priced(130.0, pounds, 1)
    assert book.to_buy("b", 1) == Priced(100.0, ("$100 for a machine with 1x b: a quote, 2026-06-01",), 1)


def test_a_price_file_in_another_currency_needs_an_exchange_rate(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="its prices are in EUR, the shipped ones in USD"):
        load_prices(file(tmp_path, currency="EUR"))
    assert load_prices(file(tmp_path, currency="EUR", shipped=False)).currency == "EUR"
    book = load_prices(file(tmp_path, currency="EUR", exchange=[{"currency": "USD", "price": 0.5, **WHEN}]))
    four = book.to_buy(H100, 4)
    assert isinstance(four, Priced)
    assert four.amount == pytest.approx(127_500 / 2)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"gpus": [{"gpu": [H100], "price": 0, **WHEN}]}, "/gpus/0/price"),
        ({"gpus": [{"gpu": [H100], "price": -1, **WHEN}]}, "/gpus/0/price"),
        ({"gpus": [{"gpu": [], "price": 1, **WHEN}]}, "/gpus/0/gpu"),
        ({"gpus": [{"gpu": [H100], "price": 1, "date": "June", "source": "x"}]}, "/gpus/0/date"),
        ({"gpus": [{"gpu": [H100], "price": 1, "date": "20260601", "source": "x"}]}, "/gpus/0/date"),
        ({"gpus": [{"gpu": [H100], "price": 1, "date": "2026-W23-1", "source": "x"}]}, "/gpus/0/date"),
        ({"gpus": [{"gpu": [H100], "price": 1, "date": "9026-06-01", "source": "x"}]}, "/gpus/0/date"),
        ({"gpus": [{"gpu": [H100], "price": 1, "date": "2026-06-01", "source": " "}]}, "/gpus/0/source"),
        ({"gpus": [{"gpu": [g, H100], "price": 1, **WHEN} for g in "ab"]}, "/gpus/1"),
        ({"systems": [{"gpus": 2, "price": p, **WHEN} for p in (1, 2)]}, "/systems/1"),
        ({"machines": [{"gpu": [H100], "gpus": 2, "price": p, **WHEN} for p in (1, 2)]}, "/machines/1"),
        ({"exchange": [{"currency": "EUR", "price": p, **WHEN} for p in (1, 2)]}, "/exchange/1"),
        ({"exchange": [{"currency": "USD", "price": 1, **WHEN}]}, "/exchange/0/currency"),
        ({"systems": [{"gpus": 0, "price": 1, **WHEN}]}, "/systems/0/gpus"),
        ({"electricity": {"price": 0.1, "overhead": 0.5, **WHEN}}, "/electricity/overhead"),
        ({"currency": "dollars"}, "/currency"),
        ({"life_years": 0}, "/life_years"),
        ({"exchange": [{"currency": "EUR", "price": 0, **WHEN}]}, "/exchange/0/price"),
    ],
)
def test_every_mistake_has_its_place(tmp_path: Path, document: dict[str, Any], path: str) -> None:
    assert path in mistakes(tmp_path, **document)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": "bench/prices/v2", "currency": "USD"}', '{"currency": NaN}', "\x00"]
)
def test_a_file_that_is_not_a_price_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"prices\.json"):
        load_prices(path)


def test_a_quote_with_a_gap_is_named(tmp_path: Path) -> None:
    found = mistakes(tmp_path, gpus=[{"gpu": [H100], "price": 1, "date": "2026-06-01"}])
    assert found == {"/gpus/0/source": "missing"}


def test_a_wrong_type_does_not_hide_other_mistakes(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        life_years=0,
        color="red",
        gpus=[{"gpu": H100, "price": "1", **WHEN}, {"gpu": [H100], "price": 0, **WHEN}],
        rents=[{"gpu": [H100], "price": 3, "date": "June", "source": "x", "currency": "EUR"}],
        machines=None,
        electricity={"price": True, **WHEN},
    )
    assert found == {
        "/color": "no such field",
        "/gpus/0/gpu": f'"{H100}" does not fit',
        "/gpus/0/price": '"1" does not fit',
        "/machines": "null does not fit",
        "/electricity/price": "true does not fit",
        "/rents/0/currency": "EUR among prices in USD",
        "/life_years": "0 is not a machine's lifetime",
        "/gpus/1/price": "0.0 is no price",
        "/rents/0/date": '"June" is no date',
    }


def test_a_mistake_of_form_names_what_is_allowed_and_the_documentation(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_prices(file(tmp_path, schema="bench/prices/v2", rents=[{"gpu": [H100], "price": "x", **WHEN}]))
    assert "docs/prices.md" in str(caught.value)
    assert [m.allowed for m in caught.value.mistakes] == ['allowed: "bench/prices/v1"', "allowed: a number"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no\.json"):
        load_prices(tmp_path / "no.json")


CURRENCIES = [("USD", 1.0), ("EUR", 1.1), ("GBP", 1.3)]
RATES = [{"currency": currency, "price": rate, **WHEN} for currency, rate in CURRENCIES[1:]]


@pytest.mark.parametrize(("currency", "rate"), CURRENCIES)
def test_every_kind_of_quote_is_converted_at_the_rate_of_its_own_currency(
    tmp_path: Path, currency: str, rate: float
) -> None:
    quoted = {"currency": currency, **WHEN}
    book = load_prices(
        file(
            tmp_path,
            shipped=False,
            exchange=RATES,
            gpus=[{"gpu": [H100], "price": 20_000, **quoted}],
            systems=[{"gpus": 4, "price": 5_000, **quoted}],
            machines=[{"gpu": [H100], "gpus": 8, "price": 150_000, **quoted}],
            rents=[
                {"gpu": [H100], "price": 3, **quoted},
                {"gpu": ["NVIDIA L4"], "gpus": 4, "price": 2, **quoted},
            ],
            electricity={"price": 0.2, "overhead": 1.5, **quoted},
        )
    )
    priced = (
        book.to_buy(H100, 2), book.to_buy(H100, 8), book.to_rent(H100, 2), book.to_rent("NVIDIA L4", 1),
        book.to_feed(100),
    )  # fmt: skip
    amounts = [one.amount for one in priced if isinstance(one, Priced)]
    assert amounts == pytest.approx([45_000 * rate, 150_000 * rate, 6 * rate, 2 * rate, 30 * rate])


@pytest.mark.parametrize(
    ("currency", "told"),
    [
        ("USD", ["$150,000 for a machine with 8x H"]),
        ("EUR", ["EUR 150,000 for a machine with 8x H", "EUR 1 is worth 1.1 USD: a quote, 2026-06-01"]),
        ("GBP", ["GBP 150,000 for a machine with 8x H", "GBP 1 is worth 1.3 USD: a quote, 2026-06-01"]),
    ],
)
def test_a_quote_is_shown_with_the_rate_of_its_own_currency_alone(
    tmp_path: Path, currency: str, told: list[str]
) -> None:
    machine = {"gpu": ["H"], "gpus": 8, "price": 150_000, "currency": currency, **WHEN}
    priced = load_prices(file(tmp_path, exchange=RATES, machines=[machine])).to_buy("H", 8)
    assert isinstance(priced, Priced)
    assert list(priced.quotes) == [f"{told[0]}: a quote, 2026-06-01", *told[1:]]


@pytest.mark.parametrize(
    ("path", "allowed", "refused"),
    [
        ("/life_years", {"life_years": 100}, {"life_years": 101}),
        ("/gpus/0/price", {"gpus": [{"gpu": [H100], "price": 1e12, **WHEN}]},
         {"gpus": [{"gpu": [H100], "price": 1.01e12, **WHEN}]}),
        ("/systems/0/gpus", {"systems": [{"gpus": 1, "price": 1, **WHEN}]},
         {"systems": [{"gpus": 0, "price": 1, **WHEN}]}),
        ("/electricity/overhead", {"electricity": {"price": 0.2, "overhead": 1, **WHEN}},
         {"electricity": {"price": 0.2, "overhead": 0.99, **WHEN}}),
        ("/electricity/overhead", {"electricity": {"price": 0.2, "overhead": 10, **WHEN}},
         {"electricity": {"price": 0.2, "overhead": 10.1, **WHEN}}),
    ],
)  # fmt: skip
def test_a_limit_of_a_price_file_is_itself_allowed(
    tmp_path: Path, path: str, allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    load_prices(file(tmp_path, **allowed))
    assert set(mistakes(tmp_path, **refused)) == {path}


def test_a_year_of_a_machine_has_365_days() -> None:
    assert PriceBook("USD", life_years=4.0).life_days == 1460.0


def test_a_rent_is_on_demand_unless_its_kind_is_given() -> None:
    quoted = ("2026-06-01", "a quote")
    plain, spot = Rent(("GPU",), 2.0, *quoted), Rent(("GPU",), 1.0, *quoted, kind="spot")
    book = PriceBook("USD", rents=(plain, spot))
    assert book.renting("on-demand").rents == (plain,)
    assert book.renting("spot").rents == (spot,)
    assert book.renting("reserved").rents == ()


def test_a_machine_lives_for_five_years_unless_another_time_is_given() -> None:
    assert PriceBook("USD").life_days == 5 * 365
    assert PriceBook("USD", life_years=3).life_days == 3 * 365


def test_a_missing_price_is_missing_for_any_number_of_nodes() -> None:
    gap = Gap("no rent")
    assert for_nodes(gap, 2) == gap
    assert for_nodes(Priced(3.0, ("a quote",), 4), 2) == Priced(6.0, ("a quote",), 4)


@pytest.mark.parametrize("named", ["+", "--", "NVIDIA A100"])
def test_a_quote_of_another_name_is_no_hint(named: str) -> None:
    book = PriceBook("USD", rents=(Rent((named,), 2.0, "2026-06-01", "a quote"),))
    assert book.to_rent("NVIDIA H100", 1) == Gap("no rent for 1x NVIDIA H100")


def test_own_rents_replace_the_shipped_ones_of_their_own_cards_alone(tmp_path: Path) -> None:
    own = {"gpu": [H100], "price": 99.0, "date": "2026-06-01", "source": "ours"}
    book, shipped = load_prices(file(tmp_path, rents=[own])), shipped_prices()
    assert [rent.price for rent in book.rents if H100 in rent.gpu] == [99.0]
    others = {rent.gpu for rent in shipped.rents if H100 not in rent.gpu}
    assert others
    assert {rent.gpu for rent in book.rents if H100 not in rent.gpu} == others


def test_rents_of_one_gpu_and_of_machines_have_an_order() -> None:
    quoted = ("2026-06-01", "a quote")
    each, machine = Rent(("GPU",), 2.0, *quoted), Rent(("GPU",), 1.0, *quoted, gpus=8)
    assert sorted([machine, each], key=lambda rent: rent.place) == [each, machine]
    assert each.place == (("GPU",), 0, "on-demand", 2.0)


def test_electricity_costs_what_the_meter_counts() -> None:
    quote = Electricity(0.2, "2026-06-01", "a contract")
    assert PriceBook("USD", electricity=quote).electricity_of(100)[0] == pytest.approx(20.0)
    more = replace(quote, overhead=1.5)
    assert PriceBook("USD", electricity=more).electricity_of(100)[0] == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("kind", "told"), [("on-demand", "a cloud, a quote"), ("spot", "a cloud, spot, a quote")]
)
def test_a_rent_that_may_end_at_any_time_is_named_so(kind: RentKind, told: str) -> None:
    rent = Rent(("GPU",), 2.0, "2026-06-01", "a quote", kind=kind, provider="a cloud")
    priced = PriceBook("USD", rents=(rent,)).to_rent("GPU", 1)
    assert isinstance(priced, Priced)
    assert priced.quotes[0].endswith(f": {told}, 2026-06-01")


def test_a_quote_may_be_of_tomorrow_and_no_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In some time zones tomorrow has begun."""

    class Day(date):
        @classmethod
        def today(cls) -> Day:
            return cls(2026, 6, 1)

    monkeypatch.setattr(price_file, "date", Day)
    quote: dict[str, Any] = {"gpu": [H100], "price": 1, "source": "a quote"}
    load_prices(file(tmp_path, gpus=[{**quote, "date": "2026-06-02"}]))
    late = mistakes(tmp_path, gpus=[{**quote, "date": "2026-06-03"}])
    assert late == {"/gpus/0/date": "2026-06-03 is in the future"}


@pytest.mark.parametrize("currency", [{"currency": 7}, {"currency": None}])
def test_a_currency_of_the_wrong_form_hides_no_other_mistake(
    tmp_path: Path, currency: dict[str, Any]
) -> None:
    assert mistakes(tmp_path, life_years=0, **currency) == {
        "/currency": f"{json.dumps(currency['currency'])} does not fit",
        "/life_years": "0 is not a machine's lifetime",
    }


def test_each_cost_of_owning_is_held_to_what_it_means(tmp_path: Path) -> None:
    percentages = ("capital", "operations", "residual")
    wrong: dict[str, Any] = {name: {"percent": 100, **WHEN} for name in percentages}
    wrong["colocation"] = {"price": 0, "overhead": 0.9, **WHEN}
    assert mistakes(tmp_path, owning=wrong) == {
        **{f"/owning/{name}/percent": "100.0" for name in percentages},
        "/owning/colocation/price": "0.0 is no price",
        "/owning/colocation/overhead": "0.9",
    }
    right = {name: {"percent": 99, **WHEN} for name in percentages}
    load_prices(file(tmp_path, owning=right))


def test_electricity_has_no_number_of_gpus() -> None:
    fed = PriceBook("USD", electricity=Electricity(0.2, "2026-06-01", "a quote", overhead=1.5)).to_feed(100)
    assert fed is not None
    assert (fed.amount, fed.gpus) == (pytest.approx(30.0), 0)


def test_of_two_rents_that_cost_the_same_the_first_is_quoted() -> None:
    rents = (
        Rent(("NVIDIA H200",), 2.0, *QUOTED, provider="a"),
        Rent(("NVIDIA H200",), 2.0, *QUOTED, provider="b"),
    )
    found = PriceBook("USD", rents=rents).to_rent("NVIDIA H200", 1)
    assert isinstance(found, Priced)
    assert found.quotes == PriceBook("USD", rents=rents[:1])._quote_texts(rents[0], "NVIDIA H200")


def test_a_machine_of_several_kinds_gets_no_hint_at_a_quote_of_one_of_them() -> None:
    book = PriceBook("USD", rents=(Rent(("NVIDIA H100",), 2.0, *QUOTED),))
    one, several = (book.to_rent(gpu, 2) for gpu in ("NVIDIA H100 80GB", "NVIDIA H100 80GB + NVIDIA L4"))
    assert isinstance(one, Gap) and isinstance(several, Gap)
    assert 'there is one for "NVIDIA H100"' in one.reason
    assert several.reason == "no rent for NVIDIA H100 80GB + NVIDIA L4"


@pytest.mark.parametrize("field", [{"owning": "x"}, {"life_years": "x"}, {"owning": {"capital": 1}}])
def test_a_part_of_the_wrong_type_hides_no_mistake_elsewhere(tmp_path: Path, field: dict[str, Any]) -> None:
    found = mistakes(tmp_path, currency="USD", electricity={"price": -1, **WHEN}, **field)
    (name,) = field
    assert "/electricity/price" in found
    assert any(path.startswith(f"/{name}") for path in found)


@pytest.mark.parametrize(
    ("years", "allowed"), [(0.5, True), (1, True), (100, True), (0, False), (100.1, False)]
)
def test_a_life_is_longer_than_nothing_and_of_at_most_100_years(
    tmp_path: Path, years: float, allowed: bool
) -> None:
    document = {"schema": "bench/prices/v1", "currency": "USD", "life_years": years}
    if allowed:
        assert parse_prices(document, "x").life_years == years
    else:
        assert list(mistakes(tmp_path, currency="USD", life_years=years)) == ["/life_years"]


@pytest.mark.parametrize(("percent", "allowed"), [(0, True), (99.9, True), (-0.1, False), (100, False)])
def test_a_cost_in_percent_is_from_0_and_less_than_100(tmp_path: Path, percent: float, allowed: bool) -> None:
    owning = {"capital": {"percent": percent, **WHEN}}
    document = {"schema": "bench/prices/v1", "currency": "USD", "owning": owning}
    if allowed:
        assert parse_prices(document, "x").owning is not None
    else:
        assert list(mistakes(tmp_path, currency="USD", owning=owning)) == ["/owning/capital/percent"]


def test_the_documentation_is_named_for_mistakes_of_form_alone() -> None:
    """The page has the form; a mistake about a lifetime says itself what is allowed."""
    good = {"schema": "bench/prices/v1", "currency": "USD"}
    for document, advice in (({**good, "life_years": 0}, False), ({**good, "life_years": "x"}, True)):
        with pytest.raises(BadInput) as caught:
            parse_prices(document, "prices.json")
        assert ("docs/prices.md" in str(caught.value.advice)) == advice


def test_rents_are_shipped_too_and_shipped_machines_stay_beside_own_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(shipped_prices().rents) > 10
    assert shipped_prices().gpus
    machine = MachinePrice(("NVIDIA X",), 8, 1_000.0, *QUOTED)
    shipped = replace(shipped_prices(), machines=(machine,))
    monkeypatch.setattr(price_file, "shipped_prices", lambda: shipped)
    own = {"gpu": ["NVIDIA Y"], "gpus": 1, "price": 5, **WHEN}
    found = load_prices(file(tmp_path, currency="USD", machines=[own]))
    assert [quote.gpu for quote in found.machines] == [("NVIDIA Y",), ("NVIDIA X",)]


def test_an_own_system_replaces_the_shipped_one_of_as_many_gpus(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    own = {"gpus": shipped_prices().systems[0].gpus, "price": 1.5, **WHEN}
    path.write_text(json.dumps({"schema": "bench/prices/v1", "currency": "USD", "systems": [own]}))
    systems = load_prices(path).systems
    counts = [system.gpus for system in systems]
    assert sorted(counts) == sorted({system.gpus for system in shipped_prices().systems})
    assert [system.price for system in systems if system.gpus == own["gpus"]] == [1.5]
