"""Estimated machines are priced, held against deadline and budget, and marked as estimates everywhere."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.gpu_catalogue import GpuModel, find_gpu_model
from bench.cli.compare import CompareArguments, collect
from bench.records.estimate import Interval
from bench.report.compare import comparison
from bench.report.compare.compared_rows import RankedRow
from bench.report.compare.comparison import Comparison, ModelPart
from bench.report.compare.decision import Option, Recommendation, Wish, within
from bench.report.compare.extrapolate import Guess
from bench.report.compare.offers import Terms
from bench.report.compare.owning import Owning, Percentage
from bench.report.compare.price_file import load_prices
from bench.report.compare.priced_guesses import GuessCosts, PricedGuess, days_text, price_guesses
from bench.report.compare.prices import Electricity, MachinePrice, PriceBook, Rent
from bench.report.pages.html import page
from bench.report.plots import all_plots
from bench.report.text.comparison_csv import CSV_COLUMNS, csv_text
from bench.report.text.comparison_table import json_text, markdown, table
from tests.report.made import START, bundle, manifest

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results/every-setting-h200"
NOBODY = Recommendation(None, None, None, None)
EIGHT = "8x H100 80GB HBM3"


def asked(deadline: float | None = None, budget: float | None = None, *machines: str) -> Comparison:
    request = CompareArguments(
        (H200,), deadline_days=deadline, budget=budget, estimate=machines or ("8xh100",)
    )
    return collect(request)


def only(comparison: Comparison) -> ModelPart:
    (part,) = comparison.parts
    return part


def guess(days: float | None = 1.0, low: float | None = 0.8, high: float | None = 1.25) -> Guess:
    card = find_gpu_model("h100")
    assert card is not None
    return Guess(card.name, 8, 0.5, days, low, high, 0, "a test")


def priced(found: Guess, wish: Wish, measured: Recommendation = NOBODY, **terms: bool) -> PricedGuess:
    (one,) = price_guesses([found], Terms(load_prices(None), wish), measured, set())
    return one


def marks(found: PricedGuess) -> dict[str, tuple[str, ...]]:
    return {offer.kind: offer.marks for offer in found.offers if offer.marks}


# Verdicts


@pytest.mark.parametrize(
    ("least", "most", "limit", "verdict"),
    [
        (0.8, 1.25, 1.25, "yes"),
        (0.8, 1.25, 1.24, "perhaps"),
        (0.8, 1.25, 0.8, "perhaps"),
        (0.8, 1.25, 0.79, "no"),
        (0.8, None, 1e9, "perhaps"),
        (0.8, None, 0.79, "no"),
    ],
)
def test_a_limit_inside_of_the_interval_is_perhaps_kept(
    least: float, most: float | None, limit: float, verdict: str
) -> None:
    assert within(least, most, limit) == verdict


@pytest.mark.parametrize(("deadline", "verdict"), [(2.0, "yes"), (1.0, "perhaps"), (0.5, "no")])
def test_an_estimate_has_a_verdict_on_the_deadline(deadline: float, verdict: str) -> None:
    (found,) = only(asked(deadline)).guesses
    assert found.in_time == verdict
    assert found.low_days is not None and found.high_days is not None
    assert found.low_days < 1.0 < found.high_days


def test_an_estimate_without_an_interval_is_never_certain() -> None:
    without = guess(low=None, high=None)
    assert priced(without, Wish(deadline_days=1e6)).in_time == "perhaps"
    assert priced(without, Wish(deadline_days=0.4)).in_time == "no"  # under the days at the vendor's peak
    unknown = priced(guess(None, None, None), Wish(deadline_days=1e6, budget=1e9))
    assert (unknown.in_time, unknown.offers) == ("perhaps", ())
    assert not any(offer.outlived for offer in priced(without, Wish(runs=2)).offers)
    assert priced(replace(guess(None), impossible=True), Wish(deadline_days=1e6)).in_time == "no"


def test_an_estimate_has_rent_and_price_and_what_a_run_costs_between_its_ends() -> None:
    (found,) = only(asked()).guesses
    by_kind = {offer.kind: offer for offer in found.offers}
    rent, buy = by_kind["rent"], by_kind["buy"]
    assert found.days and found.low_days and found.high_days
    assert rent.run_cost == pytest.approx(rent.price * 24 * found.days)
    assert rent.least_run_cost == pytest.approx(rent.price * 24 * found.low_days)
    assert rent.most_run_cost == pytest.approx(rent.price * 24 * found.high_days)
    assert buy.run_cost == pytest.approx(buy.price * found.days / (5 * 365))
    assert (buy.spend, buy.least_spend, buy.most_spend) == (buy.price,) * 3
    assert all(quote in asked().quotes for quote in rent.quotes)


@pytest.mark.parametrize(("share", "verdict"), [(1.01, "yes"), (0.99, "perhaps"), (0.5, "no")])
def test_an_estimate_has_a_verdict_on_the_budget(share: float, verdict: str) -> None:
    rent = priced(guess(), Wish()).offers[-1]
    assert rent.kind == "rent" and rent.most_spend is not None
    again = priced(guess(), Wish(budget=share * 3 * rent.most_spend, runs=3))
    assert again.offers[-1].in_budget == verdict


@pytest.mark.parametrize(
    ("deadline", "budget", "of_budget", "of_both"),
    [
        (2.0, 1e9, "yes", "yes"),
        (1.0, 1e9, "yes", "perhaps"),
        (2.0, 1.0, "no", "no"),
        (0.7, 1e9, "yes", "no"),
        (None, None, None, None),
    ],
)
def test_an_estimate_keeps_both_limits_no_more_surely_than_either(
    deadline: float | None, budget: float | None, of_budget: str | None, of_both: str | None
) -> None:
    found = priced(guess(), Wish(budget, deadline))
    assert (found.best_in_budget, found.in_time_and_budget) == (of_budget, of_both)


@pytest.mark.parametrize(
    ("gpus", "label"),
    [
        (1, "1x H100 80GB HBM3"),
        (8, EIGHT),
        (9, "9x H100 80GB HBM3 on 2 nodes"),
        (16, "16x H100 80GB HBM3 on 2 nodes"),
        (17, "17x H100 80GB HBM3 on 3 nodes"),
    ],
)
def test_an_estimate_names_its_machine_and_its_nodes_if_there_are_several(gpus: int, label: str) -> None:
    assert priced(replace(guess(), gpus=gpus), Wish()).label == label


@pytest.mark.parametrize(
    ("days", "low", "high", "text"),
    [
        (1.0, 0.8, 1.25, "1 (0.8 to 1.25)"),
        (1.0, None, None, "1 (no interval)"),
        (1.0, 0.8, None, "1 (no interval)"),
        (1.0, None, 1.25, "1 (no interval)"),
        (None, None, None, "over 0.5"),  # at the vendor's peak
    ],
)
def test_days_are_told_with_both_ends_of_their_interval(
    days: float | None, low: float | None, high: float | None, text: str
) -> None:
    assert days_text(priced(guess(days, low, high), Wish())) == text


# Answers


def test_an_estimate_answers_where_no_measured_machine_does() -> None:
    sure, unsure = Wish(deadline_days=1.25), Wish(deadline_days=1.0)
    assert marks(priced(guess(), sure)) == {"rent": ("cheapest by the deadline, by estimate",)}
    assert marks(priced(guess(), unsure)) == {"rent": ("perhaps cheapest by the deadline, by estimate",)}
    assert marks(priced(guess(), Wish(deadline_days=0.7))) == {}
    affordable = Wish(budget=1e5)
    assert marks(priced(guess(), affordable)) == {"rent": ("fastest in budget, by estimate",)}


def test_an_estimate_in_time_that_no_budget_pays_for_answers_nothing() -> None:
    found = priced(guess(), Wish(deadline_days=2.0, budget=1.0))
    assert found.in_time == "yes"
    assert marks(found) == {}


def test_electricity_that_nobody_measured_is_said_of_machines_to_buy() -> None:
    with_price = replace(load_prices(None), electricity=Electricity(0.2, "2026-06-01", "a contract"))
    (found,) = price_guesses([guess()], Terms(with_price, Wish()), NOBODY, set())
    assert {offer.kind: offer.unmetered for offer in found.offers} == {"buy": True, "rent": False}
    assert not any(offer.unmetered for offer in priced(guess(), Wish()).offers)


def test_an_estimate_never_takes_the_place_of_a_measured_answer() -> None:
    wish = Wish(deadline_days=2.0, budget=1e5)
    cheaper = Option("1x H200", "rent", Interval(1.5, 0.1), 0.0, 10.0)
    dearer = replace(cheaper, a_run=1e4)
    faster = replace(cheaper, days=Interval(0.5, 0.1))
    assert marks(priced(guess(), wish, Recommendation(faster, cheaper, None, None))) == {}
    found = marks(priced(guess(), wish, Recommendation(dearer, dearer, None, None)))
    assert found["rent"] == (
        "perhaps cheaper by the deadline, by estimate",
        "perhaps faster in budget, by estimate",
    )
    part = only(asked(8.2, 1e6))
    question = "cheapest by the deadline"
    assert any(question in offer.marks for entry in part.entries for offer in entry.offers)
    assert not any(question in offer.marks for one in part.guesses for offer in one.offers)


def test_an_estimate_of_a_machine_that_was_measured_answers_nothing() -> None:
    part = only(asked(1e3, 1e6, "2xh200"))
    assert [offer.marks for one in part.guesses for offer in one.offers] == [()] * len(part.guesses[0].offers)


def test_nothing_meets_the_deadline_is_never_said_above_an_estimate_that_does() -> None:
    for form in (table, markdown, page):
        sure, unsure, none = (re.sub(r"\s+", " ", form(asked(days))) for days in (2.0, 1.0, 0.5))
        assert (
            f"nothing measured is certain to meet the deadline of 2 days; estimates that do: {EIGHT}" in sure
        )
        assert f"deadline of 1 day; estimates that perhaps do: {EIGHT}" in unsure
        assert "nothing is certain to meet the deadline of 0.5 days" in none
        assert not any("nothing is certain" in text for text in (sure, unsure))


# Every output marks them


def test_tables_show_an_estimate_below_the_measured_and_unranked() -> None:
    comparison = asked(1.0, 800.0)
    lines = table(comparison).splitlines()
    ranked = [line.split()[0] for line in lines if re.match(r"\s*(\d+|est)\s+\d+x", line)]
    assert ranked == ["1", "2", "est"]
    (row,) = (line for line in lines if line.startswith("est "))
    assert re.search(r"1 \(0\.863 to 1\.16\).*ESTIMATE, not measured", row)
    (rent,) = (line for line in lines if line.startswith(f"rent  {EIGHT}"))
    assert "perhaps cheapest by the deadline, by estimate" in rent
    assert "perhaps over budget; perhaps meets the deadline" in rent
    assert "ESTIMATE, $" in rent
    rows = [line for line in markdown(comparison).splitlines() if EIGHT in line and line.startswith("|")]
    cell, *others = rows
    assert "~1 d" in cell  # of the matrix
    assert len(others) == 3 and all("ESTIMATE" in line for line in others)  # machine, to buy, to rent


def test_the_page_shows_an_estimate_in_another_style_and_its_dots_hollow() -> None:
    comparison = asked(2.0)
    text = page(comparison)
    (row,) = re.findall(r'<tr data-entry="2" class="est">.*?</tr>', text)
    assert EIGHT in row and "ESTIMATE" in row
    (plot,) = (plot for plot in all_plots(comparison) if plot.name.endswith("run-cost"))
    hollow = re.findall(
        r'<(?:path|circle)[^>]*class="s\d mark hollow"[^>]*><title>([^<]*)</title>', plot.body
    )
    assert len(hollow) == 2 and all("estimated: 1 (0.863 to 1.16) days" in words for words in hollow)
    assert "hollow: estimated, not measured" in plot.body
    assert plot.body.count(' line"') == 4  # a bar for each of two measured and two estimated offers


def test_csv_and_json_hold_the_estimate_and_say_so() -> None:
    comparison = asked(1.0, 800.0)
    rows = list(csv.DictReader(io.StringIO(csv_text(comparison))))
    (row,) = (row for row in rows if row["estimate"])
    (one,) = json.loads(json_text(comparison))["parts"][0]["guesses"]
    assert (row["rank"], row["level"]) == ("", "estimate")
    assert row["not_compared"].startswith("an estimate, not measured: 2x H200 times")
    assert [float(row[name]) for name in ("days", "low_days", "high_days", "at_peak_days")] == [
        one[name] for name in ("days", "low_days", "high_days", "at_peak_days")
    ]
    assert row["in_time"] == one["in_time"] == "perhaps"
    rent = next(offer for offer in one["offers"] if offer["kind"] == "rent")
    for column, name in (("hour", "price"), ("run_cost", "run_cost"), ("most_run_cost", "most_run_cost")):
        assert float(row[f"rent_{column}"]) == rent[name]
    assert row["rent_in_budget"] == rent["in_budget"] == "perhaps"
    assert row["rent_answers"] == "; ".join(rent["marks"])
    assert [row["estimate"] for row in rows] == ["", "", "true"]
    document = (ROOT / "docs/json.md").read_text()
    assert [name for name in CSV_COLUMNS if f"`{name}`" not in document] == []


@pytest.mark.parametrize(("runs", "outlived"), [(1460, False), (1461, True)])
def test_only_what_is_bought_can_be_outlived_by_the_runs(runs: int, outlived: bool) -> None:
    """1,460 runs of at most 1.25 days take a life of five years to the day; a rent has no life."""
    found = priced(guess(), Wish(runs=runs))
    assert {offer.kind: offer.outlived for offer in found.offers} == {"buy": outlived, "rent": False}


def test_of_estimates_in_budget_the_fastest_answers_though_another_is_cheaper() -> None:
    card = guess().gpu
    slow = Guess(card, 1, 0.5, 6.0, 5.0, 7.0, 0, "a test")
    found = price_guesses([slow, guess()], Terms(load_prices(None), Wish(budget=1e6)), NOBODY, set())
    rents = {one.label: next(offer for offer in one.offers if offer.kind == "rent") for one in found}
    assert rents["1x H100 80GB HBM3"].spend < rents[EIGHT].spend
    answered = {one.label for one in found if marks(one)}
    assert answered == {EIGHT}


def test_an_estimate_follows_from_runs_of_its_own_recipe_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another recipe under the same name has other days."""
    seen: list[list[str]] = []

    def record(card: GpuModel, count: int, at_peak: float, rows: list[RankedRow]) -> None:
        seen.append([row.run_id for row in rows])

    monkeypatch.setattr(comparison, "predicted_estimate", record)
    shorter = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"steps": 99}}])
    one = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A")
    other = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", of=shorter, started=START - 9)
    collect(CompareArguments((one, other), estimate=("2xh100",)))
    assert seen == [["aaaa"], ["bbbb"]]  # in the order of the groups


def test_of_estimates_that_cost_the_same_the_faster_one_is_cheapest_by_the_deadline() -> None:
    card = guess().gpu
    slow = Guess(card, 1, 0.5, 8.0, 7.0, 9.0, 0, "a test")
    book = PriceBook("USD", rents=(Rent((card,), 2.0, "2026-06-01", "a quote"),))
    found = price_guesses([slow, guess()], Terms(book, Wish(deadline_days=20.0)), NOBODY, set())
    assert {offer.spend for one in found for offer in one.offers} == {384.0}
    assert {one.label for one in found if marks(one)} == {EIGHT}


def of_kind(kind: str, days: float, half: float, gpus: int = 1) -> Guess:
    card = find_gpu_model(kind)
    assert card is not None
    return Guess(card.name, gpus, 0.01, days, days - half, days + half, 0, "a test")


def answering(wish: Wish, *found: Guess, measured: Recommendation = NOBODY) -> dict[str, str]:
    """Return what each machine answers at $1 an hour for an H100, $1 for an H200 and $2 for an L40S."""
    cards = ((find_gpu_model(kind), price) for kind, price in (("h100", 1.0), ("h200", 1.0), ("l40s", 2.0)))
    rents = tuple(Rent((card.name,), price, "2026-06-01", "a quote") for card, price in cards if card)
    priced = price_guesses(found, Terms(PriceBook("USD", rents=rents), wish), measured, set())
    return {
        one.gpu.split()[1]: mark.removesuffix(", by estimate")
        for one in priced
        for offer in one.offers
        for mark in offer.marks
    }


@pytest.mark.parametrize(
    ("wish", "found", "marks"),
    [
        # by the deadline: surely in time, then for less, then faster, then by name
        (Wish(None, 12), [("h100", 10, 1), ("h200", 9, 1)], {"H200": "cheapest by the deadline"}),
        (Wish(None, 12), [("h100", 5, 8), ("l40s", 11, 1)], {"L40S": "cheapest by the deadline"}),
        (Wish(None, 12), [("h200", 9, 1), ("h100", 9, 1)], {"H100": "cheapest by the deadline"}),
        (Wish(None, 12), [("l40s", 5, 1), ("h100", 10, 1)], {"L40S": "cheapest by the deadline"}),
        (Wish(None, 12), [("h100", 11.5, 1)], {"H100": "perhaps cheapest by the deadline"}),
        (Wish(None, 10), [("h100", 11.5, 1)], {}),
        # in budget: surely in budget, then faster, then for less, then by name
        (Wish(480), [("h100", 10, 1), ("h200", 9, 1)], {"H200": "fastest in budget"}),
        (Wish(480), [("l40s", 9.5, 1), ("h100", 12, 1)], {"H100": "fastest in budget"}),
        (Wish(480), [("l40s", 9, 1), ("h100", 9, 1)], {"H100": "fastest in budget"}),
        (Wish(480), [("h200", 9, 1), ("h100", 9, 1)], {"H100": "fastest in budget"}),
        (Wish(480), [("l40s", 9.5, 1)], {"L40S": "perhaps fastest in budget"}),
        (Wish(480), [("l40s", 11.5, 1)], {}),
    ],
)
def test_of_several_estimates_the_surest_then_the_best_answers(
    wish: Wish, found: list[tuple[str, float, float]], marks: dict[str, str]
) -> None:
    for order in (found, found[::-1]):
        assert answering(wish, *(of_kind(*one) for one in order)) == marks


@pytest.mark.parametrize(("days", "a_run", "better"), [(10.0, 240.0, False), (10.001, 240.001, True)])
def test_an_estimate_is_perhaps_better_only_than_what_is_dearer_or_slower(
    days: float, a_run: float, better: bool
) -> None:
    one = Option("1x A100", "rent", Interval(days, 0.1), 0.0, a_run)
    measured = Recommendation(one, one, None, None)
    for wish, mark in (
        (Wish(None, 12), "perhaps cheaper by the deadline"),
        (Wish(480), "perhaps faster in budget"),
    ):
        found = answering(wish, of_kind("h100", 10, 1), measured=measured)
        assert found == ({"H100": mark} if better else {})


@pytest.mark.parametrize(("runs", "verdict"), [(1, "yes"), (2, "perhaps"), (3, "no")])
def test_a_budget_pays_for_all_runs(runs: int, verdict: str) -> None:
    """A run takes 9 to 11 days at $24 each: two cost $432 to $528."""
    book = PriceBook("USD", rents=(Rent((guess().gpu,), 1.0, "2026-06-01", "a quote"),))
    (one,) = price_guesses([of_kind("h100", 10, 1)], Terms(book, Wish(480, runs=runs)), NOBODY, set())
    (rent,) = one.offers
    assert rent.in_budget == verdict
    spends = (rent.spend, rent.least_spend, rent.most_spend)
    assert spends == pytest.approx((runs * 240.0, runs * 216.0, runs * 264.0))


def bought(days: float = 1.0, utilisation: float = 1.0, **wish: float) -> PricedGuess:
    """Price 8 GPUs that cost $182,500, and 10% of it a year for operations: $100 and $50 a day."""
    found = guess(days, 0.8 * days, 1.25 * days)
    work = Owning(operations=Percentage(10.0, "2026-06-01", "a contract"))
    machine = MachinePrice((found.gpu,), 8, 182_500.0, "2026-06-01", "a quote")
    terms = Terms(PriceBook("USD", machines=(machine,), owning=work), Wish(**wish), utilisation)  # type: ignore[arg-type]
    (one,) = price_guesses([found], terms, NOBODY, set())
    return one


@pytest.mark.parametrize(("utilisation", "cost"), [(1.0, 150.0), (0.5, 300.0)])
def test_a_day_on_an_own_machine_costs_its_share_of_price_and_upkeep(utilisation: float, cost: float) -> None:
    (offer,) = bought(utilisation=utilisation).offers
    ends = (offer.run_cost, offer.least_run_cost, offer.most_run_cost)
    assert ends == pytest.approx((cost, 0.8 * cost, 1.25 * cost))
    assert [("10%" in quote, "182,500" in quote) for quote in offer.quotes] == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("budget", "verdict"), [(182_780.0, "no"), (182_830.0, "perhaps"), (183_001.0, "yes")]
)
def test_a_budget_to_buy_pays_for_the_upkeep_of_all_runs_too(budget: float, verdict: str) -> None:
    """Four runs of 0.8 to 1.25 days, on days that cost $100 of upkeep at half of the time in use."""
    (offer,) = bought(runs=4, budget=budget, utilisation=0.5).offers
    spends = (offer.spend, offer.least_spend, offer.most_spend)
    assert spends == pytest.approx((182_900.0, 182_820.0, 183_000.0))
    assert offer.in_budget == verdict


def test_the_spend_on_a_machine_to_buy_has_an_end_only_if_it_costs_nothing_by_the_day() -> None:
    without_end = guess(1.0, None, None)
    assert GuessCosts(100.0, 2.0, 3.0).spend_between(2, without_end) == (102.0, None)  # at least 0.5 days
    assert GuessCosts(100.0, 0.0, 1.0).spend_between(2, without_end) == (100.0, 100.0)
    assert GuessCosts(100.0, -2.0, 1.0).spend_between(2, guess(1.0, 0.5, 2.0)) == (92.0, 98.0)


@pytest.mark.parametrize(("runs", "answers"), [(1460, True), (1461, False)])
def test_a_machine_whose_life_may_be_too_short_answers_nothing(runs: int, answers: bool) -> None:
    """1,460 runs of at most 1.25 days fill a life of 1,825 days."""
    found = bought(runs=runs, budget=1e9, deadline_days=2.0)
    assert found.best_in_budget == ("yes" if answers else None)
    assert bool(found.offers[0].marks) == answers


def test_an_estimate_says_which_prices_are_missing() -> None:
    (found,) = price_guesses([guess()], Terms(PriceBook("USD"), Wish()), NOBODY, set())
    assert found.offers == ()
    assert [reason.split(" for ")[0] for reason in found.gaps] == ["no purchase price", "no rent"]
