"""Costs of a comparison: offers, recommendations, and messages about missing or doubtful prices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.strict_json import canonical_json
from bench.records.estimate import Interval
from bench.records.trial import Trial
from bench.report.compare import price_file
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.comparison import compare_rows
from bench.report.compare.decision import Wish
from bench.report.compare.offers import Offer, Terms, priced_row
from bench.report.compare.price_file import shipped_prices
from bench.report.compare.prices import Electricity, MachinePrice, PriceBook, Rent
from bench.report.text.comparison_table import table
from bench.report.text.remarks import remarks
from tests.report.made import H100, NO_MEMORY, START, bundle, manifest
from tests.report.test_comparing import compared, only, two


@pytest.fixture(autouse=True)
def only_prices_to_buy_are_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """List prices of providers change with each release: offers are compared with rents of these tests."""
    without = replace(shipped_prices(), rents=())
    monkeypatch.setattr(price_file, "shipped_prices", lambda: without)


def test_a_machine_without_a_price_is_named_and_stays_in_the_table(tmp_path: Path) -> None:
    a, b = two(tmp_path, gpu="NVIDIA H200")
    part = only(compared(a, b, budget=40_000.0))
    found = {entry.row.machine.name: entry for entry in part.entries}
    assert found["NVIDIA H200"].gaps == ("no purchase price for NVIDIA H200", "no rent for 1x NVIDIA H200")
    assert found[H100].offers[0].price == 31_000
    assert found[H100].offers[0].marks == ("fastest in budget",)


def test_a_deadline_needs_no_price(tmp_path: Path) -> None:
    """A card without a quote still meets the deadline, and no budget is called too small."""
    path = bundle(tmp_path / "a.tar", gpu="NVIDIA H200")
    part = only(compared(path, budget=1.0, deadline_days=1000.0))
    assert (part.nothing_in_budget, part.nothing_in_time) == (False, False)
    text = table(compared(path, budget=1.0, deadline_days=1000.0))
    assert "meets the deadline" in text
    assert "nothing" not in text
    late = only(compared(path, deadline_days=1e-9))
    assert late.nothing_in_time
    assert "nothing is certain to meet the deadline" in table(compared(path, deadline_days=1e-9))


def test_a_deadline_is_told_with_the_digits_of_the_question(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", gpu="NVIDIA H200")
    text = table(compared(path, deadline_days=1.2345e-5))
    assert "certain to do a run in 0.00001234 days" in text
    assert "nothing is certain to meet the deadline of 0.00001234 days" in text


def test_a_file_of_prices_is_advised_for_gpus_and_not_for_cpus(rows: tuple[RankedRow, ...]) -> None:
    cpu = replace(rows[0], machine=replace(rows[0].machine, kind="cpu", name="a CPU", identity="cpu"))
    gpu = replace(rows[1], machine=replace(rows[1].machine, name="NVIDIA X", identity="x"))
    comparison = compare_rows([cpu, gpu], [], Terms(BOOK, NO_WISH, own_prices=True), 2)
    said = list(remarks(only(comparison), comparison))
    assert "no price for a CPU: a CPU" in said
    assert "no purchase price for NVIDIA X: --prices FILE can add one" in said


def test_unmeasured_electricity_is_reported_and_not_taken_as_free(tmp_path: Path) -> None:
    quote = {"date": "2026-06-01", "source": "contract"}
    prices = tmp_path / "prices.json"
    given = {"schema": "bench/prices/v1", "currency": "USD", "electricity": {"price": 0.2, **quote}}
    prices.write_text(json.dumps(given))
    a, b = two(tmp_path, watts=None)
    found = compared(a, b, prices=prices)
    unmetered = {
        entry.row.run_id: [offer.unmetered for offer in entry.offers] for entry in only(found).entries
    }
    assert unmetered == {"aaaa": [False], "bbbb": [True]}
    assert table(found).count("without electricity: its power was not measured") == 1


def test_a_machine_whose_electricity_costs_more_than_a_rent_says_so(tmp_path: Path) -> None:
    quote = {"date": "2026-06-01", "source": "contract"}
    prices = tmp_path / "prices.json"
    rents = [{"gpu": [H100], "price": 0.001, **quote}]
    given = {"schema": "bench/prices/v1", "currency": "USD", "electricity": {"price": 0.2, **quote}}
    prices.write_text(json.dumps({**given, "rents": rents}))
    found = compared(bundle(tmp_path / "a.tar"), prices=prices)
    buy, rent = only(found).entries[0].offers
    assert (buy.break_even, buy.rent_always_less, rent.rent_always_less) == (None, True, False)
    assert table(found).count("its electricity and upkeep alone cost more than the cheapest rent") == 1


def test_an_empty_budget_result_is_reported(tmp_path: Path) -> None:
    part = only(compared(*two(tmp_path), budget=10.0, deadline_days=1e-9))
    assert (part.nothing_in_budget, part.nothing_in_time) == (True, True)


@pytest.mark.parametrize(
    ("budget", "deadline_days", "nothing_in_budget", "nothing_in_time"),
    [
        (None, None, False, False),
        (31_000.0, None, False, False),  # what the machine costs
        (30_999.0, None, True, False),
        (None, 1000.0, False, False),
        (None, 1e-9, False, True),
        (31_000.0, 1000.0, False, False),
        (31_000.0, 1e-9, False, True),
        (30_999.0, 1000.0, True, True),  # what is in time is beyond the budget
    ],
)
def test_a_limit_that_nothing_keeps_is_reported_if_it_was_given(
    tmp_path: Path,
    budget: float | None,
    deadline_days: float | None,
    nothing_in_budget: bool,
    nothing_in_time: bool,
) -> None:
    found = compared(bundle(tmp_path / "a.tar"), budget=budget, deadline_days=deadline_days)
    part = only(found)
    assert (part.nothing_in_budget, part.nothing_in_time) == (nothing_in_budget, nothing_in_time)
    assert ("nothing fits the budget" in table(found)) == nothing_in_budget


def test_a_deadline_is_not_called_missed_if_nothing_is_ranked(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", settings=[((), NO_MEMORY)])
    assert not only(compared(path, deadline_days=1.0)).nothing_in_time


def test_a_purchase_with_too_few_runs_never_beats_renting(tmp_path: Path) -> None:
    rents = [{"gpu": [H100], "price": 2.0, "date": "2026-06-01", "source": "price list"}]
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"schema": "bench/prices/v1", "currency": "USD", "rents": rents}))
    one = bundle(tmp_path / "a.tar")
    (buy, _) = only(compared(one, prices=prices)).entries[0].offers
    assert buy.break_even is not None
    needed = buy.break_even.utilisation
    assert 0 < needed < 1
    enough, less = (table(compared(one, prices=prices, utilisation=needed * x)) for x in (1.01, 0.99))
    assert "beats the cheapest rent from" in enough
    assert "never beats the cheapest rent in 5 years, in use" in less


def test_a_machine_whose_life_is_too_short_for_the_runs_is_not_recommended(tmp_path: Path) -> None:
    """Two machines would be needed, so the price of one would be wrong."""
    one = bundle(tmp_path / "a.tar", pass_seconds=700.0)
    (entry,) = only(compared(one, budget=1e9, deadline_days=1e4)).entries
    life = int(5 * 365 / entry.row.best.days.value)  # runs
    assert life > 1
    (buy,) = only(compared(one, budget=1e9, deadline_days=1e4, runs=life)).entries[0].offers
    assert (buy.outlived, buy.marks) == (False, ("fastest in budget", "cheapest by the deadline"))
    wanted = {"budget": 1e9, "deadline_days": 1e4}
    for asked in ({"runs": life + 1}, {"runs": life, "utilisation": 0.5}):
        found = compared(one, **wanted, **asked)
        (buy,) = only(found).entries[0].offers
        assert (buy.outlived, buy.marks) == (True, ())
        assert only(found).nothing_in_budget
        assert f"too slow for {asked['runs']:,} runs in 5 years" in table(found)


def test_a_rent_of_more_gpus_than_trained_says_so(tmp_path: Path) -> None:
    rents = [{"gpu": [H100], "gpus": 4, "price": 20, "date": "2026-06-01", "source": "price list"}]
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"schema": "bench/prices/v1", "currency": "USD", "rents": rents}))
    one = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A")
    four = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", gpus=4)
    found = compared(one, four, prices=prices)
    rented = {
        e.row.machine.devices: o.gpus for e in only(found).entries for o in e.offers if o.kind == "rent"
    }
    assert rented == {1: 4, 4: 4}
    assert table(found).count("of a machine with 4 GPUs") == 1


@pytest.mark.parametrize("named", ["H100", "NVIDIA H100", "nvidia h100 80gb hbm3"])
def test_a_quote_whose_name_does_not_match_is_reported(named: str, tmp_path: Path) -> None:
    rents = [{"gpu": [named], "price": 2.0, "date": "2026-06-01", "source": "price list"}]
    prices = tmp_path / "prices.json"
    given = {"schema": "bench/prices/v1", "currency": "USD", "shipped": False, "rents": rents}
    prices.write_text(json.dumps(given))
    text = table(compared(bundle(tmp_path / "a.tar"), prices=prices))
    assert f'no rent for 1x {H100} (there is one for "{named}": a quote must have the driver' in text
    prices.write_text(json.dumps({**given, "rents": [{**rents[0], "gpu": ["NVIDIA H200"]}]}))
    text = table(compared(bundle(tmp_path / "a.tar"), prices=prices))
    assert f"no rent for 1x {H100}: --prices FILE can add one" in text


def test_a_recommendation_names_its_own_doubts(tmp_path: Path) -> None:
    a, _ = two(tmp_path)
    odd = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C", pass_seconds=0.1, complete=False,
                 of=manifest(memory_cap_gib=24))  # fmt: skip
    b = bundle(tmp_path / "d.tar", run_id="dddd", uuid="D")
    text = table(compared(a, b, odd, rank_all=True, budget=1e6))
    (line,) = (line for line in text.splitlines() if "<- fastest in budget" in line)
    assert "INCOMPLETE: more settings may be faster; NOT ALIKE: memory cap 24 GiB, not none" in line


def test_two_nodes_are_two_machines_and_not_one_with_all_their_gpus(tmp_path: Path) -> None:
    quote = {"date": "2026-06-01", "source": "price list"}
    rents = [{"gpu": [H100], "gpus": 2, "price": 5, **quote}, {"gpu": [H100], "gpus": 4, "price": 9, **quote}]
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"schema": "bench/prices/v1", "currency": "USD", "rents": rents}))
    one = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", gpus=4)
    both = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", gpus=4, on_one_node=2)
    found = compared(one, both, prices=prices)
    cost = {e.row.machine.label: [o.price for o in e.offers] for e in only(found).entries}
    assert cost == {
        "4x H100 80GB HBM3": [4 * 30_000 + 7_500, 9],
        "4x H100 80GB HBM3 on 2 nodes": [2 * (2 * 30_000 + 1_500), 10],
    }
    assert table(found).count("2 machines with 2 GPUs each, without their network") == 2


def test_partially_used_nodes_are_priced_as_whole_machines(tmp_path: Path) -> None:
    """Two of four GPUs per node train over a network: two machines are paid, idle GPUs draw less."""
    of = manifest(gpus=2)
    trial = Trial(of.models[0], (), 16, 4, of.seed, of.timing)
    readings = (
        {"at": START + i, "trial": trial.id, "gpus": [{"energy_joules": one * i} for one in (400, 400, 9, 9)]}
        for i in range(60)
    )
    drawn = b"".join(canonical_json(reading) + b"\n" for reading in readings)
    path = bundle(tmp_path / "a.tar", gpus=4, on_one_node=4, of=of, telemetry=drawn)
    (entry,) = only(compared(path)).entries
    assert entry.row.machine.label == "4x H100 80GB HBM3 on 2 nodes"
    assert [offer.price for offer in entry.offers] == [2 * (2 * 30_000 + 1_500)]
    assert entry.row.watts == pytest.approx(4 * 400)


A6000 = "NVIDIA RTX A6000"
QUOTED = ("2026-06-01", "a quote")
BOOK = PriceBook(
    "USD",
    machines=(MachinePrice((H100,), 1, 10_000, *QUOTED), MachinePrice((A6000,), 1, 5_000, *QUOTED)),
    rents=(Rent((H100,), 2.0, *QUOTED), Rent((A6000,), 0.5, *QUOTED)),
    electricity=Electricity(0.2, *QUOTED, overhead=1.5),
)
NO_WISH = Wish()


@pytest.fixture
def rows(tmp_path: Path) -> tuple[RankedRow, ...]:
    """Make a machine that takes 73 of its life's 1,825 days for a run at 500 W, and one of 146 at 100 W."""
    made = []
    for run_id, gpu, days, watts in (("a", H100, 73.0, 500.0), ("b", A6000, 146.0, 100.0)):
        path = bundle(tmp_path / f"{run_id}.tar", run_id=run_id, uuid=run_id, gpu=gpu)
        row = only(compared(path)).entries[0].row
        made.append(replace(row, watts=watts, best=replace(row.best, days=Interval(days, 0.1))))
    return tuple(made)


def offered(rows: tuple[RankedRow, ...], wish: Wish = NO_WISH, utilisation: float = 1.0) -> dict[str, Offer]:
    """Return every offer at the prices of BOOK, by its kind and its GPU."""
    part = only(compare_rows(rows, [], Terms(BOOK, wish, utilisation), len(rows)))
    return {f"{o.kind} {e.row.machine.name}": o for e in part.entries for o in e.offers}


@pytest.mark.parametrize(
    ("utilisation", "h100", "a6000"),
    [
        (1.0, 400 + 876 * 1.5 * 0.2, 400 + 350.4 * 1.5 * 0.2),  # 876 and 350.4 kWh
        (0.5, 800 + 876 * 1.5 * 0.2, 800 + 350.4 * 1.5 * 0.2),
    ],
)
def test_a_run_costs_a_share_of_the_machine_and_its_electricity_or_its_rented_hours(
    rows: tuple[RankedRow, ...], utilisation: float, h100: float, a6000: float
) -> None:
    costs = {name: offer.run_cost for name, offer in offered(rows, utilisation=utilisation).items()}
    assert costs == pytest.approx(
        {
            f"buy {H100}": h100,
            f"rent {H100}": 73 * 24 * 2,
            f"buy {A6000}": a6000,
            f"rent {A6000}": 146 * 24 * 0.5,
        }
    )


@pytest.mark.parametrize(("runs", "buy", "rent"), [(1, 10_000 + 262.80, 3_504), (3, 10_000 + 788.40, 10_512)])
def test_all_runs_are_paid_and_the_machine_once(
    rows: tuple[RankedRow, ...], runs: int, buy: float, rent: float
) -> None:
    found = offered(rows, Wish(runs=runs))
    assert (found[f"buy {H100}"].spend, found[f"rent {H100}"].spend) == pytest.approx((buy, rent))


@pytest.mark.parametrize(
    ("runs", "budget", "buy", "rent"),
    [
        (1, 10_263, True, True),
        (1, 10_262, False, True),
        (1, 3_503, False, False),
        (3, 10_789, True, True),
        (3, 10_788, False, True),
        (3, 10_511, False, False),
    ],
)
def test_the_budget_is_for_all_runs(
    rows: tuple[RankedRow, ...], runs: int, budget: float, buy: bool, rent: bool
) -> None:
    found = offered(rows, Wish(budget, runs=runs))
    assert (found[f"buy {H100}"].in_budget, found[f"rent {H100}"].in_budget) == (buy, rent)


@pytest.mark.parametrize(("gpu", "runs"), [(H100, 7), (A6000, 4)])
def test_owning_breaks_even_against_the_cheapest_rent_of_all_machines(
    rows: tuple[RankedRow, ...], gpu: str, runs: int
) -> None:
    """$1,752 is saved for a run, less $262.80 or $105.12 for electricity."""
    even = offered(rows)[f"buy {gpu}"].break_even
    assert even is not None
    assert even.runs == runs


@pytest.mark.parametrize(("utilisation", "rent_pays"), [(1.0, False), (0.1, True)])
def test_rent_is_on_the_frontier_if_an_owned_machine_is_used_too_little(
    rows: tuple[RankedRow, ...], utilisation: float, rent_pays: bool
) -> None:
    """A rented run costs $3,504, an owned one $662.80, or $4,262.80 at a tenth of the life in use."""
    found = offered(rows[:1], utilisation=utilisation)
    assert found[f"buy {H100}"].on_frontier
    assert found[f"rent {H100}"].on_frontier == rent_pays


def test_rows_with_other_conditions_are_ranked_together_only_if_the_user_asks(tmp_path: Path) -> None:
    other = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"steps": 99}}])
    row = only(compared(bundle(tmp_path / "a.tar"))).entries[0].row
    longer = only(compared(bundle(tmp_path / "b.tar", run_id="b", uuid="b", of=other))).entries[0].row
    plain, every = (Terms(BOOK, NO_WISH), Terms(BOOK, NO_WISH, rank_all=True))
    found = [compare_rows((row, longer), [], terms, 2).parts for terms in (plain, every)]
    assert [[len(part.entries) for part in parts] for parts in found] == [[1, 1], [2]]


def test_only_a_machine_that_is_bought_pays_for_electricity(rows: tuple[RankedRow, ...]) -> None:
    """A rent includes it, so that nothing is missing from its price."""
    unmeasured = tuple(replace(row, watts=None) for row in rows)
    assert {name: offer.unmetered for name, offer in offered(unmeasured).items()} == {
        f"buy {H100}": True,
        f"rent {H100}": False,
        f"buy {A6000}": True,
        f"rent {A6000}": False,
    }


@pytest.mark.parametrize("own", [None, False, True])
def test_prices_are_the_users_own_only_if_that_is_said(rows: tuple[RankedRow, ...], own: bool | None) -> None:
    terms = Terms(BOOK, NO_WISH) if own is None else Terms(BOOK, NO_WISH, own_prices=own)
    assert compare_rows(rows, [], terms, 2).own_prices == bool(own)


def test_an_offer_tells_every_quote_that_its_figures_rest_on(rows: tuple[RankedRow, ...]) -> None:
    found = offered(rows)
    bought, rented = found[f"buy {H100}"].quotes, found[f"rent {H100}"].quotes
    assert [quote.endswith("a quote, 2026-06-01") for quote in (*bought, *rented)] == [True] * 3
    assert len(bought) == 2 and "10,000" in bought[0] and "0.2" in bought[1]
    assert len(rented) == 1 and "2" in rented[0]


def test_only_a_machine_that_is_bought_can_break_even(rows: tuple[RankedRow, ...]) -> None:
    found = offered(rows)
    assert {name for name, offer in found.items() if offer.break_even} == {f"buy {H100}", f"buy {A6000}"}
    assert not any(offer.rent_always_less for offer in found.values())


def test_an_owned_machine_trains_in_the_used_share_of_its_life() -> None:
    assert Terms(PriceBook("USD", life_years=4.0), Wish(), utilisation=0.25).used_days == 365.0
    assert Terms(PriceBook("USD", life_years=4.0), Wish()).used_days == 1460.0


def test_an_offer_says_what_a_unit_of_currency_buys(rows: tuple[RankedRow, ...]) -> None:
    found = offered(rows)
    units = rows[0].units
    assert units > 0
    assert found[f"buy {H100}"].units_per_currency == pytest.approx(units / 662.80)
    assert found[f"rent {H100}"].units_per_currency == pytest.approx(units / 3_504)


def test_a_run_for_less_than_one_unit_of_currency_has_a_rate_too(rows: tuple[RankedRow, ...]) -> None:
    """73 days at a hundredth of a cent an hour are $0.1752."""
    cheap = replace(BOOK, rents=(Rent((H100,), 0.0001, *QUOTED),))
    part = only(compare_rows(rows[:1], [], Terms(cheap, NO_WISH), 1))
    rented = part.entries[0].offers[1]
    assert rented.units_per_currency == pytest.approx(rows[0].units / 0.1752)


def test_what_costs_nothing_has_no_rate(rows: tuple[RankedRow, ...]) -> None:
    free = replace(BOOK, rents=(Rent((H100,), 0.0, *QUOTED),))
    part = only(compare_rows(rows[:1], [], Terms(free, NO_WISH), 1))
    rates = {offer.kind: offer.units_per_currency for offer in part.entries[0].offers}
    assert rates["rent"] is None
    assert rates["buy"] is not None


def test_a_cpu_has_no_price_and_says_so(rows: tuple[RankedRow, ...]) -> None:
    row = replace(rows[0], machine=replace(rows[0].machine, kind="cpu", name="a CPU"))
    (entry,) = only(compare_rows([row], [], Terms(BOOK, NO_WISH), 1)).entries
    assert (entry.offers, entry.gaps) == ((), ("no price for a CPU: a CPU",))
    unpriced = priced_row(entry.row, BOOK)
    amounts = (unpriced.machine.price, unpriced.machine.electricity, unpriced.machine.upkeep)
    assert (*amounts, unpriced.machine.rent, unpriced.unmetered) == (None, 0.0, 0.0, None, False)


def test_power_that_was_not_measured_is_missed_only_where_electricity_has_a_price(
    rows: tuple[RankedRow, ...],
) -> None:
    entry = only(compare_rows(rows[:1], [], Terms(BOOK, NO_WISH), 1)).entries[0]
    measured, unmeasured = entry.row, replace(entry.row, watts=None)
    unpriced = replace(BOOK, electricity=None)
    found = [priced_row(row, book).unmetered for row in (measured, unmeasured) for book in (BOOK, unpriced)]
    assert found == [False, False, True, False]


def test_a_machine_without_a_price_to_buy_has_no_upkeep(rows: tuple[RankedRow, ...]) -> None:
    """The page of a comparison lets readers enter a price: the costs of owning must not be there already."""
    entry = only(compare_rows(rows[:1], [], Terms(BOOK, NO_WISH), 1)).entries[0]
    priced = priced_row(entry.row, PriceBook("USD", rents=BOOK.rents))
    assert (priced.machine.price, priced.machine.upkeep, priced.machine.rent) == (None, 0.0, 2.0)
