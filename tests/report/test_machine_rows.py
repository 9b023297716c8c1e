"""Rows of machines and offers, cell by cell: each figure in digits, each note by itself, in texts and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.base import terminal
from bench.base.terminal import Table, Wrapped
from bench.cli.compare import CompareArguments, collect
from bench.records.estimate import Interval
from bench.records.marks import Mark
from bench.report.compare.comparison import Comparison, Entry, ModelPart, SetApart
from bench.report.compare.decision import BreakEven, Rank, Wish
from bench.report.compare.offers import Offer
from bench.report.compare.priced_guesses import GuessOffer, PricedGuess
from bench.report.text.comparison_csv import CSV_COLUMNS, csv_text
from bench.report.text.comparison_table import (
    OFFER_STEPS,
    STEPS,
    machine_tables,
    markdown,
    offer_table,
    table,
)
from bench.report.text.machine_rows import HEADERS, cells, life_text, machine_rows, offer_worth, offers
from tests.report.made import bundle

PLAIN = Interval(12.0, 0.5)
RENT = Offer(
    kind="rent", run_cost=1440.0, spend=1440.0, in_budget=None, outlived=False, on_frontier=True,
    break_even=None, rent_always_less=False, marks=(), price=5.0, gpus=1, quotes=(), unmetered=False,
    units_per_currency=4.5e8,
)  # fmt: skip
BUY = replace(RENT, kind="buy", run_cost=1000.0, spend=1000.0, price=30_000.0, units_per_currency=2e9)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Compare one machine whose figures every test overrides."""
    path = bundle(tmp_path_factory.mktemp("made") / "n01.tar", run_id="run-1")
    return replace(collect(CompareArguments((path,))), life_years=4.0, utilisation=1.0)


def the_part(made: Comparison) -> ModelPart:
    (part,) = made.parts
    return part


@pytest.fixture
def entry(made: Comparison) -> Entry:
    (one,) = the_part(made).entries
    best = replace(
        one.row.best, label="compile", micro_batch=16, accumulation=4, utilisation=0.57, share_of_floor=0.875,
        mfu=0.41, peak_bytes=3 << 30, units_per_second=1234.5, step_seconds=Interval(0.25, 0.01), days=PLAIN,
    )  # fmt: skip
    row: Any = replace(one.row, best=best, level="operator", trusted=False, complete=True, marks=())
    return replace(
        one, row=row, days=PLAIN, on_another_day=Interval(12.0, 0.25), place=Rank(1, None), kwh=120.0,
        node_kwh=180.0, co2_kg=72.0, offers=(), in_time=None, differs_in=(),
    )  # fmt: skip


def with_row(entry: Entry, **changes: Any) -> Entry:
    return replace(entry, row=replace(entry.row, **changes))


def with_best(entry: Entry, **changes: Any) -> Entry:
    return with_row(entry, best=replace(entry.row.best, **changes))


# --- machines -------------------------------------------------------------------------------------------


def test_every_figure_has_its_cell(entry: Entry) -> None:
    slower = replace(entry, place=Rank(3, Interval(1.5, 0.1)))
    assert cells(slower, "4x H100") == {
        "rank": "3",
        "machine": "4x H100",
        "days": "12.00 ±0.50",
        "slower": "1.50 ±0.10",
        "setting": "compile",
        "batch": "16 x 4",
        "limit": "57%",
        "floor": "88%",
        "mfu": "41%",
        "memory": "3.0 GiB",
        "kwh": "120",
        "node_kwh": "180",
        "co2": "72",
        "level": "operator",
        "run": "run-1",
        "note": "searched only methods naive",
    }


def test_a_figure_that_is_missing_is_an_empty_cell(entry: Entry) -> None:
    bare = replace(with_best(entry, utilisation=None, share_of_floor=None, mfu=None), kwh=None)
    shown = cells(replace(bare, node_kwh=None, co2_kg=None), "1x H100")
    assert {name for name, text in shown.items() if not text} == {
        "slower", "limit", "floor", "mfu", "kwh", "node_kwh", "co2",
    }  # fmt: skip


def test_a_trusted_signer_is_named_beside_the_level(entry: Entry) -> None:
    assert cells(with_row(entry, trusted=True), "")["level"] == "operator (trusted)"


def note(entry: Entry) -> str:
    return cells(entry, "")["note"].replace("searched only methods naive", "").strip("; ")


def test_each_doubt_is_noted_by_itself(entry: Entry) -> None:
    marks = (Mark("SHARED", "x", 1.0), Mark("LOADED", "y", 2.0))
    assert note(entry) == ""
    assert note(with_row(entry, complete=False)) == "INCOMPLETE: more settings may be faster"
    assert note(with_row(entry, marks=marks)) == "SHARED, LOADED: see below"
    assert note(replace(entry, differs_in=("seed 1", "tf32"))) == "NOT ALIKE: seed 1, tf32"


@pytest.mark.parametrize(
    ("in_time", "told"),
    [
        ("yes", "meets the deadline"),
        ("perhaps", "may miss the deadline"),
        ("no", "misses the deadline"),
        (None, ""),
    ],
)
def test_a_deadline_is_told_once(entry: Entry, made: Comparison, in_time: Any, told: str) -> None:
    late = replace(entry, in_time=in_time)
    assert note(late) == told
    assert note(replace(late, offers=(RENT,))) == "", "the note of the offer says it"
    assert offer_notes(made, late, RENT) == told


def test_machines_of_one_kind_are_told_apart_by_their_files(entry: Entry, made: Comparison) -> None:
    other = with_row(entry, path="/results/n02.tar")
    alone = with_row(entry, machine=replace(entry.row.machine, devices=2))
    part = replace(the_part(made), entries=(with_row(entry, path="a/n01.tar"), other, alone))
    names = [row["machine"] for row in machine_rows(part)]
    assert names == ["1x H100 80GB HBM3 (n01)", "1x H100 80GB HBM3 (n02)", "2x H100 80GB HBM3"]


def test_a_table_has_the_columns_that_some_machine_of_some_part_fills(entry: Entry, made: Comparison) -> None:
    plain = replace(the_part(made), entries=(replace(entry, kwh=None, node_kwh=None, co2_kg=None),))
    with_co2 = replace(the_part(made), entries=(replace(entry, kwh=None, node_kwh=None),))
    empty = replace(the_part(made), entries=())
    first, second, none = machine_tables([plain, with_co2, empty])
    assert none is None and first is not None and second is not None
    names = [column.name for column in first.columns]
    assert names == [column.name for column in second.columns]
    assert set(HEADERS) - set(names) == {"slower", "kwh", "node_kwh"}
    assert [column.right for column in first.columns if column.name in ("machine", "days")] == [False, True]
    assert [column.name for column in first.columns if column.fixed] == ["rank", "machine", "note"]
    assert dict(zip(names, second.rows[0], strict=True))["co2"] == "72"


# --- offers ---------------------------------------------------------------------------------------------


def compared(made: Comparison, entry: Entry, offer: Offer, **changes: Any) -> Comparison:
    part = replace(the_part(made), entries=(replace(entry, offers=(offer,)),))
    return replace(made, parts=(part,), **changes)


def offer_notes(made: Comparison, entry: Entry, offer: Offer, **changes: Any) -> str:
    found = compared(made, entry, offer, **changes)
    ((row, _),) = offers(the_part(found), found)
    return row[-1]


def test_an_offer_has_its_price_a_runs_cost_and_what_money_trains(entry: Entry, made: Comparison) -> None:
    for offer, figures in (
        (RENT, ("$5.00 an hour", "$1,440", "450M tokens/$", "$2.22")),
        (BUY, ("$30,000", "$1,000", "2B tokens/$", "$0.50")),
    ):
        found = compared(made, entry, offer)
        row = (offer.kind, "1x H100 80GB HBM3", "12.00 ±0.50", *figures, "")
        assert offers(the_part(found), found) == [(row, False)]
    answering = compared(made, entry, replace(RENT, marks=("fastest in budget",)))
    ((_, answers),) = offers(the_part(answering), answering)
    assert answers


def test_what_money_trains_is_in_the_currency_of_the_prices() -> None:
    assert offer_worth(4.5e8, "tokens", "EUR") == ("450M tokens/EUR", "EUR 2.22")
    assert offer_worth(None, "tokens", "USD") == ("", "")


def test_columns_have_these_heads_sides_and_some_are_always_shown(entry: Entry, made: Comparison) -> None:
    assert HEADERS == {
        "rank": "", "machine": "machine", "days": "days", "slower": "times the fastest", "setting": "setting",
        "batch": "batch", "limit": "of limit", "floor": "of floor", "mfu": "MFU", "memory": "memory",
        "kwh": "kWh a run", "node_kwh": "node kWh", "co2": "kg CO2", "level": "level", "run": "run",
        "note": "",
    }  # fmt: skip
    slower = replace(entry, place=Rank(2, Interval(1.5, 0.1)))
    (shown,) = machine_tables([replace(the_part(made), entries=(slower,))])
    assert shown is not None
    assert [(column.name, column.head) for column in shown.columns] == list(HEADERS.items())
    left = [column.name for column in shown.columns if not column.right]
    assert left == ["machine", "setting", "level", "run", "note"]
    found = compared(made, entry, RENT)
    offered = offer_table(the_part(found), found)
    assert offered is not None
    assert [(column.name, column.head) for column in offered.columns] == [
        ("kind", ""), ("machine", "machine"), ("days", "days"), ("price", "price"), ("cost", "a run"),
        ("worth", "worth"), ("billion", "a billion"), ("note", ""),
    ]  # fmt: skip
    assert [column.name for column in offered.columns if column.fixed] == ["kind", "machine", "note"]
    assert [column.name for column in offered.columns if not column.right] == ["kind", "machine", "note"]


def test_no_price_is_no_table(entry: Entry, made: Comparison) -> None:
    found = compared(made, entry, RENT)
    shown = offer_table(the_part(found), found)
    assert shown is not None and len(shown.rows) == 1
    part = replace(the_part(found), entries=(replace(entry, offers=()),))
    assert offer_table(part, found) is None


def test_each_note_of_an_offer_has_its_own_reason(entry: Entry, made: Comparison) -> None:
    assert offer_notes(made, entry, RENT) == ""
    assert offer_notes(made, entry, replace(RENT, in_budget=True)) == ""
    assert offer_notes(made, entry, replace(RENT, in_budget=False)) == "over budget"
    assert offer_notes(made, entry, replace(BUY, unmetered=True)) == (
        "without electricity: its power was not measured"
    )
    assert offer_notes(made, entry, replace(BUY, rent_always_less=True)) == (
        "its electricity and upkeep alone cost more than the cheapest rent"
    )
    assert offer_notes(made, entry, replace(RENT, gpus=8)) == "price of a machine with 8 GPUs"
    two_nodes = with_row(entry, machine=replace(entry.row.machine, nodes=2, devices=16))
    assert offer_notes(made, two_nodes, replace(RENT, gpus=8)) == (
        "2 machines with 8 GPUs each, without their network"
    )


def test_every_offer_repeats_the_doubts_about_its_figure(entry: Entry, made: Comparison) -> None:
    """Days and costs follow from the figure, whether the offer answers a question or not."""
    doubtful = with_row(entry, complete=False)
    assert offer_notes(made, doubtful, RENT) == "INCOMPLETE: more settings may be faster"
    marked = with_row(entry, marks=(Mark("SLOWED", "heat held GPU 0 back", 0.1),))
    assert offer_notes(made, marked, RENT) == "SLOWED: see below"
    assert offer_notes(made, doubtful, replace(RENT, marks=("cheapest in time", "fastest in budget"))) == (
        "<- cheapest in time, fastest in budget; INCOMPLETE: more settings may be faster"
    )


def test_several_runs_have_their_whole_cost_unless_the_machine_does_not_live_to_do_them(
    entry: Entry, made: Comparison
) -> None:
    three = replace(RENT, spend=4320.0)
    assert offer_notes(made, entry, three, wish=Wish(runs=1)) == ""
    assert offer_notes(made, entry, three, wish=Wish(runs=2)) == "$4,320 for 2 runs"
    assert offer_notes(made, entry, three, wish=Wish(runs=3000)) == "$4,320 for 3,000 runs"
    outlived = replace(BUY, outlived=True)
    assert offer_notes(made, entry, outlived, wish=Wish(runs=3)) == "too slow for 3 runs in 4 years"
    assert offer_notes(made, entry, outlived, wish=Wish(runs=1)) == "too slow for 1 run in 4 years"


def test_owning_beats_renting_from_some_run_on_or_never(entry: Entry, made: Comparison) -> None:
    beats = "beats the cheapest rent from 1,200 runs in 4 years on (50% of its life)"
    even = replace(BUY, break_even=BreakEven(1200, 0.5))
    assert offer_notes(made, entry, even) == beats
    assert offer_notes(made, entry, even, utilisation=0.5) == beats, "it is just in use for so long"
    never = "never beats the cheapest rent in 4 years, in use 49.9% of it"
    assert offer_notes(made, entry, even, utilisation=0.499) == never
    beyond = replace(BUY, break_even=BreakEven(9000, 1.01))
    assert offer_notes(made, entry, beyond) == "never beats the cheapest rent in 4 years"


def test_a_life_says_how_much_of_it_trains(made: Comparison) -> None:
    assert life_text(replace(made, life_years=2.5, utilisation=1.0)) == "2.5 years"
    assert life_text(replace(made, life_years=3.0, utilisation=0.85)) == "3 years, in use 85% of it"


# --- CSV ------------------------------------------------------------------------------------------------


def csv_row(comparison: Comparison) -> dict[str, str]:
    (row,) = csv.DictReader(io.StringIO(csv_text(comparison)))
    return row


def test_every_figure_is_in_its_column_with_every_digit(entry: Entry, made: Comparison) -> None:
    marked = with_row(entry, marks=(Mark("LOADED", "82 C", 2.0), Mark("SHARED", "x", 1.0)), trusted=True)
    marked = replace(
        marked, place=Rank(3, Interval(1.5, 0.125)), in_time="perhaps", differs_in=("seed 1", "tf32"),
        days=Interval(12.0, 0.5),
    )  # fmt: skip
    buy = replace(BUY, break_even=BreakEven(7, 0.25), outlived=True, unmetered=True, marks=("a", "b"))
    rent = replace(RENT, in_budget=False, spend=4320.0, gpus=8, marks=("c",))
    part = replace(
        the_part(made), entries=(replace(marked, offers=(buy, rent)),), differs_in=("cap 24 GiB", "tf32")
    )
    row = csv_row(replace(made, parts=(part,), currency="EUR"))
    assert list(row) == list(CSV_COLUMNS)
    assert {name: text for name, text in row.items() if text} == {
        "model": "tiny-gpt-neox", "rank": "3", "machine": "NVIDIA H100 80GB HBM3", "devices": "1",
        "days": "12.0", "days_half_width": "0.5", "half_width_another_day": "0.25",
        "half_width_another_machine": "0.5", "slower": "1.5", "slower_half_width": "0.125",
        "setting": "compile", "micro_batch": "16", "accumulation": "4", "step_seconds": "0.25",
        "units_per_second": "1234.5", "unit": "tokens", "utilisation": "0.57", "peak_bytes": str(3 << 30),
        "kwh": "120.0", "node_kwh": "180.0", "co2_kg": "72.0", "currency": "EUR", "level": "operator",
        "trusted": "true", "complete": "true", "run": "run-1", "bundle": entry.row.path, "nodes": "1",
        "not_alike": "seed 1; tf32", "group": "cap 24 GiB, tf32", "in_time": "perhaps",
        "searched": "methods naive, micro-batch auto", "share_of_floor": "0.875", "mfu": "0.41",
        "marks": "LOADED: 82 C; SHARED: x",
        "buy_price": "30000.0", "buy_run_cost": "1000.0", "buy_spend": "1000.0", "buy_outlived": "true",
        "buy_unmetered": "true", "buy_answers": "a; b", "break_even_runs": "7",
        "break_even_utilisation": "0.25", "buy_units_per_currency": "2000000000.0",
        "rent_hour": "5.0", "rent_gpus": "8", "rent_run_cost": "1440.0", "rent_spend": "4320.0",
        "rent_in_budget": "false", "rent_answers": "c", "rent_units_per_currency": "450000000.0",
    }  # fmt: skip


def test_an_estimate_has_its_own_columns(made: Comparison) -> None:
    offer = GuessOffer(
        kind="rent", price=5.0, run_cost=100.0, least_run_cost=90.0, most_run_cost=None, spend=200.0,
        least_spend=180.0, most_spend=None, gpus=8, quotes=(), in_budget="perhaps", outlived=False,
        unmetered=False, marks=("a",),
    )  # fmt: skip
    guess = PricedGuess(
        gpu="NVIDIA H200", gpus=16, at_peak_days=1.5, days=4.0, low_days=3.0, high_days=5.0, held_out=7,
        basis="a row", in_time="yes", gaps=(),
        offers=(offer, replace(offer, kind="buy", price=9.0, most_run_cost=110.0, unmetered=True)),
    )  # fmt: skip
    part = replace(the_part(made), entries=(), apart=(), guesses=(guess,), differs_in=("tf32", "seed 1"))
    row = csv_row(replace(made, parts=(part,), currency="EUR"))
    assert {name: text for name, text in row.items() if text} == {
        "model": "tiny-gpt-neox", "group": "tf32, seed 1", "unit": "tokens", "currency": "EUR",
        "machine": "NVIDIA H200", "devices": "16", "nodes": "2", "estimate": "true", "days": "4.0",
        "low_days": "3.0", "high_days": "5.0", "at_peak_days": "1.5", "in_time": "yes", "level": "estimate",
        "not_compared": "an estimate, not measured: a row",
        "rent_hour": "5.0", "rent_gpus": "8", "rent_run_cost": "100.0", "rent_least_run_cost": "90.0",
        "rent_spend": "200.0", "rent_in_budget": "perhaps", "rent_answers": "a",
        "buy_price": "9.0", "buy_run_cost": "100.0", "buy_least_run_cost": "90.0",
        "buy_most_run_cost": "110.0", "buy_spend": "200.0", "buy_in_budget": "perhaps", "buy_answers": "a",
        "buy_outlived": "false", "buy_unmetered": "true",
    }  # fmt: skip


def test_the_fastest_machine_takes_once_its_own_days(entry: Entry, made: Comparison) -> None:
    row = csv_row(compared(made, entry, RENT))
    assert (row["rank"], row["slower"], row["slower_half_width"]) == ("1", "1.0", "0.0")


# --- tables ---------------------------------------------------------------------------------------------


def widest(entry: Entry) -> Entry:
    """Make an entry that fills every column, with texts that are worth wrapping."""
    long = with_best(entry, label="checkpointing + half-weights + compile-blocks")
    return replace(with_row(long, complete=False), place=Rank(2, Interval(1.5, 0.1)))


def narrowing(shown: Table, steps: Sequence[str | Wrapped]) -> dict[tuple[str, ...], dict[str, int]]:
    """Return by columns left out, in their order, how wide the others are where it is narrowest."""
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for room in range(260, 30, -1):
        fitted = terminal.fitted_tables([shown], steps, room=room)
        rule = next(line for line in fitted.texts[0].splitlines() if set(line) == {"-", " "})
        names = [
            column.name for column in shown.columns if column.head not in fitted.left_out or not column.head
        ]
        widths = dict(zip(names, map(len, rule.split()), strict=True))
        if widths["note"] < 14:  # all steps are taken
            break
        if sum(widths.values()) + 2 * (len(widths) - 1) == room:
            found[tuple(fitted.left_out)] = widths
    return found


def test_a_narrower_terminal_wraps_texts_and_loses_columns_in_this_order(
    entry: Entry, made: Comparison
) -> None:
    (shown,) = machine_tables([replace(the_part(made), entries=(widest(entry),))])
    assert shown is not None
    found = narrowing(shown, STEPS)
    order = (
        "run", "level", "kWh a run", "MFU", "node kWh", "of floor", "of limit", "memory", "batch",
        "times the fastest", "kg CO2", "setting",
    )  # fmt: skip
    assert list(found) == [order[:count] for count in range(len(order) + 1)]
    assert found[()]["note"] == 20
    assert found[order[:8]]["setting"] > 20
    assert found[order[:9]]["setting"] == 20
    assert found[order[:10]]["machine"] > 12
    assert found[order[:11]]["machine"] == 12
    assert found[order] == {"rank": 2, "machine": 12, "days": 11, "note": 14}


def test_a_narrower_terminal_wraps_and_loses_columns_of_offers_in_this_order(
    entry: Entry, made: Comparison
) -> None:
    found = compared(made, entry, replace(RENT, marks=("the cheapest by the deadline",)))
    shown = offer_table(the_part(found), found)
    assert shown is not None
    widths = narrowing(shown, OFFER_STEPS)
    assert list(widths) == [
        (), ("a billion",), ("a billion", "worth"), ("a billion", "worth", "days"),
        ("a billion", "worth", "days", "price"),
    ]  # fmt: skip
    assert widths[()]["note"] == 20
    assert widths["a billion", "worth", "days"]["machine"] == 12
    assert widths["a billion", "worth", "days", "price"] == {"kind": 4, "machine": 12, "cost": 7, "note": 14}


def test_lines_of_an_answer_go_on_four_blanks_to_the_right(
    entry: Entry, made: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    asked = compared(made, entry, RENT, wish=Wish(deadline_days=3.0, budget=100.0, runs=2))
    lines = table(asked).split("\n\n")[0].splitlines()
    assert lines[0].startswith("asked: ") and sum(line.startswith("answer: ") for line in lines) == 1
    rest = [line for line in lines if not line.startswith(("asked: ", "answer: "))]
    assert rest and all(line[:4] == "    " != line[4:8] for line in rest)


def test_a_comparison_of_nothing_says_so(made: Comparison) -> None:
    nothing = replace(made, parts=())
    assert table(nothing) == "nothing to compare"
    assert markdown(nothing).startswith("### Nothing to compare\n")


def test_a_part_is_titled_by_its_model_and_what_differs_in_it(made: Comparison) -> None:
    assert the_part(made).title == "tiny-gpt-neox"
    assert replace(the_part(made), differs_in=("tf32", "seed 1")).title == "tiny-gpt-neox: tf32, seed 1"


def test_notes_are_a_list_of_markdown(made: Comparison) -> None:
    notes = markdown(made).split("\n\n")[-1].splitlines()
    assert len(notes) > 2 and all(note.startswith("- ") for note in notes)


def test_a_model_without_a_ranked_machine_has_remarks_and_no_table(entry: Entry, made: Comparison) -> None:
    part = replace(the_part(made), entries=(), apart=(SetApart(entry.row, ("its figures are odd",)),))
    for form in (table, markdown):
        text = form(replace(made, parts=(part, replace(the_part(made), model="other"))))
        assert "its figures are odd" in text
        assert "1x H100 80GB HBM3" in text
