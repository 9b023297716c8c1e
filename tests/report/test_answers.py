"""A comparison begins with its answer, says what would change it, and shows all models by machines."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.cli.compare import CompareArguments, collect
from bench.records.estimate import Interval
from bench.records.spread import on_another_machine
from bench.report.compare.answers import AnswerInputs, Choice, MachineAnswer, answers_of
from bench.report.compare.compared_rows import RankedRow, Row
from bench.report.compare.comparison import Comparison, ModelPart, compare_rows
from bench.report.compare.decision import Rank, Recommendation, Wish
from bench.report.compare.extrapolate import Guess
from bench.report.compare.matrix import matrix_of
from bench.report.compare.offers import Terms
from bench.report.compare.price_file import load_prices
from bench.report.compare.priced_guesses import price_guesses
from bench.report.compare.prices import MachinePrice, PriceBook, Rent
from bench.report.text.answer_text import answer_text, part_answer, question_text
from bench.report.text.comparison_table import markdown, table
from bench.report.text.matrix_text import cell_text, legend, matrix_text
from tests.report.made import NO_MEMORY, START, bundle, manifest

ROOT = Path(__file__).parents[2]
H200 = ROOT / "results/every-setting-h200"
EIGHT = "8x H100 80GB HBM3"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Collect the rows of 17 machines of five kinds, which all trained pythia-160m."""
    seen: list[Row] = []

    def keep(given: Any, *rest: Any) -> Comparison:
        seen.extend(row for row in given if row.model == "pythia-160m")
        return compare_rows(seen, *rest)

    folders = ("hour-h200", "proof-h200", "proof-2xh200", "recipes-h100", "every-setting-h200")
    paths = tuple(ROOT / "results" / folder for folder in folders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.library.compare.compare_rows", keep)
        collect(CompareArguments(paths))
    return seen


def asking(rows: list[Row], wish: Wish) -> dict[str, MachineAnswer]:
    """Ask about all rows as one group."""
    terms = Terms(load_prices(None), wish, rank_all=True)
    (part,) = compare_rows(rows, (), terms, len(rows)).parts
    return {answer.question: answer for answer in part.answers}


@cache
def about(**changes: Any) -> Comparison:
    """Compare the bundles of H200, which are read once for equal questions."""
    return collect(CompareArguments((H200,), **changes))


def only(comparison: Comparison) -> ModelPart:
    (part,) = comparison.parts
    return part


def told(**changes: Any) -> str:
    return answer_text(about(**changes))


# What would change an answer is what happens if one asks again


def test_a_deadline_that_is_said_to_change_the_answer_does(rows: list[Row]) -> None:
    draw, seen = random.Random(8), set()
    for _ in range(60):
        wish = Wish(
            draw.choice([None, 10 ** draw.uniform(2, 4)]), 10 ** draw.uniform(0, 1.7), draw.choice([1, 3])
        )
        answer = asking(rows, wish)["cheapest by the deadline"]
        for change in (one for one in answer.changes if one.limit == "deadline"):
            seen.add(change.side)
            at = change.value if change.side == "from" else math.nextafter(change.value, 0)
            assert _chosen(rows, replace(wish, deadline_days=at), answer.question) == change.choice
            before = math.nextafter(change.value, 0) if change.side == "from" else change.value
            assert _chosen(rows, replace(wish, deadline_days=before), answer.question) == answer.choice
    assert seen == {"from", "under"}


def test_a_budget_that_is_said_to_change_the_answer_does(rows: list[Row]) -> None:
    draw, seen = random.Random(9), set()
    for _ in range(60):
        wish = Wish(10 ** draw.uniform(2, 4.5), draw.choice([None, 5.0]), draw.choice([1, 3]))
        answer = asking(rows, wish)["fastest in budget"]
        for change in (one for one in answer.changes if one.limit == "budget"):
            seen.add(change.side)
            at = change.value if change.side == "from" else math.nextafter(change.value, 0)
            assert _chosen(rows, replace(wish, budget=at), answer.question) == change.choice
            before = math.nextafter(change.value, 0) if change.side == "from" else change.value
            assert _chosen(rows, replace(wish, budget=before), answer.question) == answer.choice
    assert seen == {"from", "under"}


def _chosen(rows: list[Row], wish: Wish, question: str) -> Choice | None:
    return asking(rows, wish)[question].choice


def test_the_answer_is_the_offer_that_the_table_marks(rows: list[Row]) -> None:
    draw = random.Random(10)
    for _ in range(40):
        wish = Wish(10 ** draw.uniform(2, 4), 10 ** draw.uniform(0, 1.5), draw.choice([1, 2]))
        terms = Terms(load_prices(None), wish, rank_all=True)
        (part,) = compare_rows(rows, (), terms, len(rows)).parts
        for answer in part.answers:
            marked = [
                (entry.row.machine.label, offer.kind, offer.spend)
                for entry in part.entries
                for offer in entry.offers
                if answer.question in offer.marks
            ]
            choice = answer.choice
            assert marked == ([(choice.machine, choice.kind, choice.spend)] if choice else [])


def test_a_figure_without_marks_takes_the_answer_from_a_marked_one_once_it_is_in_time(tmp_path: Path) -> None:
    hot = bundle(tmp_path / "a.tar", hot=True, pass_seconds=0.4)
    sound = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", pass_seconds=0.5)
    (part,) = collect(CompareArguments((hot, sound), deadline_days=0.04)).parts
    (answer,) = part.answers
    assert answer.choice is not None and answer.choice.doubts == ("SLOWED",)
    later = answer.changes[0]
    assert (later.side, later.choice and later.choice.doubts) == ("from", ())
    assert answer.nearest is None  # which is said only without a measured answer


def test_a_machine_that_is_named_beside_the_answer_is_named_with_its_doubts(tmp_path: Path) -> None:
    hot = bundle(tmp_path / "a.tar", hot=True, pass_seconds=0.4)
    sound = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", pass_seconds=0.5)
    text = answer_text(collect(CompareArguments((hot, sound), deadline_days=1)))
    assert text.startswith("Rent ")
    assert re.search(r"with a deadline under [\d.]+ days, rent [^(]*\([^)]*, SLOWED\)", text)


def test_each_question_gets_the_estimate_that_answers_it() -> None:
    wanted = ("8xh100", "2xh100")
    (part,) = about(deadline_days=3, budget=800.0, estimate=wanted).parts
    by_question = {answer.question: answer for answer in part.answers}
    measured = by_question["fastest in budget"].choice
    assert measured is not None and measured.machine == "1x H200"
    faster = by_question["fastest in budget"].estimate
    cheapest = by_question["cheapest by the deadline"].choice
    assert cheapest is not None and not cheapest.measured
    marked = {
        mark.removesuffix(", by estimate").removeprefix("perhaps "): guess.label
        for guess in part.guesses
        for offer in guess.offers
        for mark in offer.marks
    }
    assert cheapest.machine == marked["cheapest by the deadline"]
    assert (faster and faster.machine) == marked.get("faster in budget")


def test_an_estimate_without_a_price_can_meet_a_deadline(rows: list[Row]) -> None:
    (slow,) = (
        row for row in rows if isinstance(row, RankedRow) and row.path.endswith("pythia-160m-1gpu.tar")
    )
    for high, certain in ((1.25, "yes"), (1.4, "perhaps")):
        found = Guess("NVIDIA B200", 8, 0.5, 1.0, 0.8, high, 0, "a test")
        terms = Terms(PriceBook("USD"), Wish(None, 1.3))
        guesses = price_guesses([found], terms, Recommendation(None, None, None, None), set())
        (answer,) = answers_of(AnswerInputs([slow], [Rank(1, None)], [], guesses, terms))
        assert answer.choice is not None and answer.nearest is not None
        assert (answer.choice.machine, answer.choice.kind, answer.certain) == ("8x B200", None, certain)


def test_an_estimate_that_surely_keeps_the_limits_is_a_sure_answer() -> None:
    (part,) = about(deadline_days=2, estimate=("8xh100",)).parts
    (sure,) = part.answers
    assert (sure.choice and sure.choice.machine, sure.certain) == (EIGHT, "yes")
    (part,) = about(deadline_days=1, estimate=("8xh100",)).parts
    assert part.answers[0].certain == "perhaps"


def test_where_nothing_answers_no_limit_is_kept(rows: list[Row]) -> None:
    for wish in (Wish(deadline_days=1e-3), Wish(budget=1.0)):
        (answer,) = asking(rows, wish).values()
        assert (answer.choice, answer.estimate, answer.alike, answer.certain) == (None, None, None, "no")
        assert answer.nearest is not None


QUOTED = ("2026-06-01", "a quote")
RENTED = Rent(("NVIDIA H200",), 1.0, *QUOTED)
BOUGHT = MachinePrice(("NVIDIA H200",), 1, 1825.0, *QUOTED)


@pytest.mark.parametrize(
    ("book", "kind", "upfront", "cost_of_a_day"),
    [
        (PriceBook("USD", rents=(RENTED,), machines=(BOUGHT,)), "rent", 0.0, 24.0),
        (PriceBook("USD", rents=(RENTED,)), "rent", 0.0, 24.0),
        (PriceBook("USD", machines=(BOUGHT,)), "buy", 1825.0, 1.0),  # a life has 1,825 days
        (PriceBook("USD"), None, 0.0, None),
    ],
)
def test_a_machine_is_named_at_its_rent_else_at_its_price_else_without_one(
    rows: list[Row], book: PriceBook, kind: str | None, upfront: float, cost_of_a_day: float | None
) -> None:
    (one,) = (row for row in rows if row.path.endswith("pythia-160m-1gpu.tar"))
    (part,) = compare_rows([one], (), Terms(book, Wish(runs=3)), 1).parts
    choice = part.answers[0].choice
    assert choice is not None
    assert (choice.machine, choice.kind, choice.upfront) == ("1x H200", kind, upfront)
    cost = None if cost_of_a_day is None else pytest.approx(cost_of_a_day * choice.days)
    assert choice.run_cost == cost
    spends = {"rent": 72.0 * choice.days, "buy": 1825.0, None: None}
    assert choice.spend == (None if kind is None else pytest.approx(spends[kind]))


def test_a_machine_without_a_price_has_the_interval_of_its_days(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", gpu="some GPU")
    (part,) = collect(CompareArguments((path,), deadline_days=1000)).parts
    choice, days = part.answers[0].choice, on_another_machine(part.entries[0].row.days)
    assert choice is not None and days.half_width > 0
    assert choice.days == days.value
    assert choice.low_days == pytest.approx(days.value - days.half_width)
    assert choice.high_days == pytest.approx(days.value + days.half_width)


def test_the_matrix_has_groups_of_which_nothing_was_measured() -> None:
    found = about(estimate=("8xh100",))
    part = only(found)
    estimated = replace(found, parts=(replace(part, entries=()), replace(part, entries=(), guesses=())))
    (row,) = matrix_of(estimated).rows
    assert [cell and (cell.machine, cell.measured) for cell in row.cells] == [(EIGHT, False)]


# In words


def test_the_answer_says_what_how_long_at_what_cost_how_sure_and_what_changes_it() -> None:
    assert told(deadline_days=5) == (
        "Rent 2x H200, 3.87 days (3.71 to 4.04), $4,688 a run. At least 95 of 100 machines of its kind meet"
        " the deadline; from a deadline of 8.07 days on, rent 1x H200 (7.74 days, $667 a run); with a"
        " deadline under 4.04 days, no measured machine does."
    )
    assert told(budget=5_000.0).startswith("Rent 2x H200, 3.87 days (3.71 to 4.04), $4,688 a run. At least")
    tight = "With another machine of its kind it may cost more than the budget; with a budget under $4,688"
    assert tight in told(budget=4_700.0)
    both = told(budget=1_000.0, deadline_days=9)
    assert "$667 a run: the cheapest by the deadline and fastest in budget. " in both
    apart = told(budget=9_000.0, deadline_days=9)
    assert apart.startswith("Cheapest by the deadline: rent 1x H200, ")
    assert "; fastest in budget: rent 2x H200, " in apart


def test_without_an_answer_the_limit_that_would_give_one_is_said() -> None:
    assert told(deadline_days=2) == (
        "Nothing is certain to meet 2 days: the fastest is 2x H200, 3.87 days (3.71 to 4.04), $4,688 a run."
        " From a deadline of 4.04 days on, rent 2x H200 (3.87 days, $4,688 a run)."
    )
    assert "From a budget of $667 on, rent 1x H200" in told(budget=100.0)


def test_an_estimate_answers_as_an_estimate_and_beside_a_measured_answer_as_perhaps_better() -> None:
    estimated = told(deadline_days=2, estimate=("8xh100",))
    assert estimated.startswith(f"By estimate, rent {EIGHT}, 1 day (0.863 to 1.16), ")
    then = "from a deadline of 4.04 days on, rent 2x H200"
    assert f"Nobody measured it, so measure it before you pay; {then}" in estimated
    assert told(deadline_days=1, estimate=("8xh100",)).startswith(f"By estimate, perhaps rent {EIGHT}")
    beside = told(deadline_days=5, estimate=("8xh100",))
    assert beside.startswith("Rent 2x H200, ")
    assert f"perhaps cheaper, by estimate: rent {EIGHT} (1 day" in beside


def test_without_a_question_the_fastest_and_the_cheapest_to_rent_are_named() -> None:
    found = about()
    asked = "asked: which machine trains fastest, and which costs least to rent"
    assert question_text(found).startswith(asked)
    fastest = "Fastest: 2x H200, 3.87 days (3.71 to 4.04), $4,688 a run"
    assert answer_text(found).startswith(f"{fastest}; cheapest to rent: 1x H200, 7.74 days")
    assert "No other kind that was measured is as fast, at 95%" in answer_text(found)
    assert only(found).answers[0].alike is None
    alone = answer_text(collect(CompareArguments((H200 / "pythia-160m-1gpu.tar",))))
    assert "the fastest and cheapest to rent. No other kind of machine was measured" in alone


def test_a_machine_without_a_price_meets_a_deadline_and_doubts_are_said(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", gpu="some GPU", complete=False, hot=True)
    text = answer_text(collect(CompareArguments((path,), deadline_days=1000)))
    assert text.startswith("Use 1x some GPU, ")
    assert "at an unknown cost" in text
    assert "its figure is SLOWED, INCOMPLETE" in text
    poor = answer_text(collect(CompareArguments((path,), budget=1.0)))
    assert poor.startswith("No machine has a price: the fastest is 1x some GPU, ")
    assert "(SLOWED, INCOMPLETE)" in poor
    unasked = collect(CompareArguments((path,)))
    assert [answer.question for answer in only(unasked).answers] == ["fastest"]
    none = bundle(tmp_path / "b.tar", settings=[((), NO_MEMORY)])
    assert answer_text(collect(CompareArguments((none,)))) == "No machine has a figure."


def test_a_better_answer_of_another_group_is_said_if_it_trains_the_same(tmp_path: Path) -> None:
    old: dict[str, Any] = {"packages": {"torch": "2.9.0"}, "started": START - 9}
    slow = bundle(tmp_path / "a.tar", pass_seconds=0.5)
    fast = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", pass_seconds=0.3, **old)
    text = answer_text(collect(CompareArguments((slow, fast), deadline_days=0.04)))
    assert text.startswith("Nothing is certain to meet 0.04 days: the fastest is 1x H100")
    assert "under other conditions (group 2), rent 1x H100 80GB HBM3 (0.0278 days" in text
    assert "other conditions" not in answer_text(collect(CompareArguments((slow, fast), deadline_days=0.02)))
    shorter = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"steps": 99}}])
    other = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C", of=shorter, started=START - 9)
    assert "other conditions" not in answer_text(collect(CompareArguments((slow, other), deadline_days=0.04)))


def test_about_few_models_each_machine_is_named(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", of=manifest(models=["tiny-gpt-neox", "tiny-vit"]))
    found = answer_text(collect(CompareArguments((path,), deadline_days=1)))
    assert found.startswith("tiny-gpt-neox: rent 1x H100 80GB HBM3, ")
    assert "; tiny-vit: rent 1x H100 80GB HBM3, " in found
    assert found.endswith("says how sure it is and what changes it.")


def test_about_several_models_it_counts_those_with_an_answer() -> None:
    found = collect(CompareArguments((ROOT / "results/hour-h200/decided.tar",), deadline_days=50))
    assert len(found.parts) == 9
    in_time = sum(part.entries[0].in_time == "yes" for part in found.parts)
    first, second = answer_text(found).split(". ")
    assert first == (
        f"For {in_time} of 9 models a measured machine is certain to meet 50 days, for {9 - in_time} none"
    )
    assert second.startswith("The matrix marks each answer; each")
    for form in (table, markdown):
        text = form(found)
        assert all(part_answer(part, found).split(" (")[0] in text for part in found.parts)


# The order


@pytest.mark.parametrize("form", [table, markdown])
def test_the_answer_stands_first_then_the_matrix_then_models_then_notes(form: Any) -> None:
    text = form(about(deadline_days=5, estimate=("8xh100",)))
    places = [
        text.index(words)
        for words in (
            "asked: ", "Rent 2x H200, ", "~", "\npythia-160m" if form is table else "### pythia-160m",
            "free-lunch + fsdp-2", "an hour", "about these figures:", "ESTIMATE 8x", "close: ",
            "no purchase price", "kinds of machine of equal rank",
        )
    ]  # fmt: skip
    assert places == sorted(places)
    assert len({*places}) == len(places)


# The matrix


def test_the_matrix_has_every_machine_and_says_what_each_cell_is() -> None:
    found = about(deadline_days=5, estimate=("8xh100", "4xh200"), budget=5_000.0)
    matrix = matrix_of(found)
    assert matrix.machines == (EIGHT, "1x H200", "2x H200", "4x H200")
    by_machine = {cell.machine: cell for cell in matrix.cells}
    assert by_machine["2x H200"].chosen and by_machine["2x H200"].measured
    assert by_machine["1x H200"].kept == "no"
    assert not by_machine["4x H200"].measured and not by_machine["4x H200"].chosen
    texts = [cell_text(cell, "USD") for cell in matrix.cells]
    assert texts == ["~1 d $767", "(7.74 d $667)", "3.87 d $4,688 *", "~1.82 d $2,199"]
    for words in ("* the answer", "~ estimated, not measured", "( ) misses the deadline or the budget"):
        assert words in legend(matrix)
    assert "perhaps" not in legend(matrix)  # of signs that no cell has, nothing is said
    unsure = matrix_of(about(deadline_days=1, estimate=("8xh100",)))
    assert cell_text(unsure.cells[0], "USD") == "~1 d $767? *"


@cache
def with_estimates(bundles: str) -> Comparison:
    """Compare the bundles of a folder, beside estimates of five machines: the same for each terminal."""
    wanted = ("8xh100", "16xh100", "a100-80gb", "8xb200", "l40s")
    return collect(CompareArguments((ROOT / "results" / bundles,), deadline_days=20, estimate=wanted))


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("bundles", ["hour-h200", "every-setting-h200"])
def test_the_matrix_fits_the_terminal_and_loses_no_cell(
    columns: int, bundles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = matrix_of(with_estimates(bundles))
    assert len(matrix.cells) > 6
    monkeypatch.setenv("COLUMNS", str(columns))
    text = matrix_text(matrix, "USD")
    assert max(map(len, text.splitlines())) <= columns
    assert all(cell_text(cell, "USD") in text for cell in matrix.cells)
    assert all(machine in text for machine in matrix.machines)
    assert all(row.name in text for row in matrix.rows)


def test_a_machine_that_is_not_provably_slower_is_named_beside_the_fastest(tmp_path: Path) -> None:
    first = bundle(tmp_path / "a.tar", pass_seconds=0.5)
    rival = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", gpu="NVIDIA H200", pass_seconds=0.501)
    slow = bundle(tmp_path / "c.tar", run_id="cccc", uuid="C", gpu="NVIDIA RTX A6000", pass_seconds=1.5)
    (fastest, *_) = only(collect(CompareArguments((first, rival, slow)))).answers
    assert (fastest.question, fastest.certain) == ("fastest", "perhaps")
    assert fastest.choice is not None and fastest.choice.machine == "1x H100 80GB HBM3"
    assert fastest.alike is not None and fastest.alike.machine == "1x H200"
    (fastest, *_) = only(collect(CompareArguments((first, slow)))).answers
    assert (fastest.certain, fastest.alike) == ("yes", None)


def test_where_nothing_has_a_price_a_budget_leaves_the_deadline_its_answer(rows: list[Row]) -> None:
    terms = Terms(PriceBook("USD", shipped=False), Wish(budget=1.0, deadline_days=1e4), rank_all=True)
    (part,) = compare_rows(rows, (), terms, len(rows)).parts
    by_question = {answer.question: answer for answer in part.answers}
    choice = by_question["cheapest by the deadline"].choice
    assert choice is not None
    assert (choice.machine, choice.kind, choice.spend) == (part.entries[0].row.machine.label, None, None)
    assert by_question["fastest in budget"].choice is None
    assert asking(rows, Wish(budget=1.0, deadline_days=1e4))["cheapest by the deadline"].choice is None


def test_a_cell_says_whether_its_cost_is_in_budget() -> None:
    def in_budget(budget: float | None) -> dict[str, str | None]:
        cells = matrix_of(about(estimate=("8xh100",), budget=budget)).cells
        return {cell.machine: cell.in_budget for cell in cells}

    assert in_budget(None) == {EIGHT: None, "1x H200": None, "2x H200": None}
    assert in_budget(5_000.0) == {EIGHT: "yes", "1x H200": "yes", "2x H200": "yes"}
    assert in_budget(760.0) == {EIGHT: "perhaps", "1x H200": "yes", "2x H200": "no"}
    assert in_budget(100.0) == {EIGHT: "no", "1x H200": "no", "2x H200": "no"}


def test_a_cell_says_whether_its_cost_is_a_share_of_a_price(tmp_path: Path) -> None:
    machines = [
        {"gpu": [gpu], "gpus": count, "price": 1e5, "date": "2026-06-01", "source": "a quote"}
        for gpu, count in (("NVIDIA H200", 1), ("NVIDIA H100 80GB HBM3", 8))
    ]
    prices = tmp_path / "prices.json"
    document = {"schema": "bench/prices/v1", "currency": "USD", "shipped": False, "machines": machines}
    prices.write_text(json.dumps(document))
    own = matrix_of(about(estimate=("8xh100",), prices=prices)).cells
    assert {cell.machine: cell.bought for cell in own} == {EIGHT: True, "1x H200": True, "2x H200": False}
    assert {cell.machine: cell.run_cost is None for cell in own}["2x H200"]
    rented = matrix_of(about(estimate=("8xh100",))).cells
    assert {cell.machine: cell.bought for cell in rented} == {
        EIGHT: False,
        "1x H200": False,
        "2x H200": False,
    }


def test_groups_of_a_model_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    shorter = manifest(models=[{"name": "tiny-gpt-neox", "recipe": {"steps": 99}}])
    one = bundle(tmp_path / "a.tar")
    other = bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", of=shorter, started=START - 9)
    rows = matrix_of(collect(CompareArguments((one, other)))).rows
    assert [row.name for row in rows] == ["tiny-gpt-neox", "tiny-gpt-neox (group 2)"]


def test_the_star_is_on_the_machine_that_answers_and_not_on_a_faster_one_of_its_kind(rows: list[Row]) -> None:
    """Nobody knows a price, and the faster machine is too uncertain to meet the deadline."""
    row = next(row for row in rows if isinstance(row, RankedRow))
    unsure, sure = (
        replace(row, run_id=name, machine=replace(row.machine, identity=name), step_times=(),
                best=replace(row.best, days=days), marks=())
        for name, days in (("unsure", Interval(10.0, 3.0)), ("sure", Interval(10.5, 0.1)))
    )  # fmt: skip
    found = compare_rows([unsure, sure], [], Terms(PriceBook("USD"), Wish(deadline_days=11.5)), 2)
    (cell,) = matrix_of(found).cells
    assert (cell.run_id, cell.in_time, cell_text(cell, "USD")) == ("sure", "yes", "10.5 d *")
    assert "10.5 days" in answer_text(found)
