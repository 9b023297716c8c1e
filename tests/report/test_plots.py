"""Every plot has ticks that differ, and names the runs whose figures it shows."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli.compare import CompareArguments, collect
from bench.records.estimate import Interval
from bench.report.compare.comparison import Comparison
from bench.report.compare.matrix import matrix_of
from bench.report.pages.html import page
from bench.report.plots import all_plots, money
from bench.report.plots.scatter import Point, scatter
from bench.report.plots.speedups import _gains
from bench.report.plots.svg import (
    MOST_RUNS,
    Box,
    Linear,
    Log,
    Plot,
    axes,
    inline,
    mark,
    standalone,
    tick_texts,
)
from tests.report.made import bundle

ROOT = Path(__file__).parents[2]
BOX = Box(64, 36, 470, 300)
sizes = st.floats(1e-9, 1e12)
spans = st.floats(1e-6, 10.0)


@given(sizes, spans)
def test_the_ticks_of_any_range_differ_and_stand_where_they_say(low: float, span: float) -> None:
    ticks = Linear(low, low * (1 + span), 0, 400).ticks()
    texts = tick_texts(ticks)
    assert len({*texts}) == len(texts) >= 2
    step = min(b - a for a, b in pairwise(ticks))
    for tick, words in zip(ticks, texts, strict=True):
        assert float(words.replace(",", "")) == pytest.approx(tick, abs=0.11 * step)


@given(sizes, st.floats(1.0001, 1e7))
def test_the_ticks_of_any_log_range_differ(low: float, factor: float) -> None:
    texts = tick_texts(Log(low, low * factor, 0, 400).ticks())
    assert len({*texts}) == len(texts) >= 2


def test_ticks_of_a_run_that_costs_650_dollars_differ() -> None:
    """The machines of this plot cost $649.81 and $650.55."""
    drawn = axes(Linear(649.75, 650.61, 64, 470), Linear(3.8, 7.9, 300, 36), BOX, "cost", "days", x_unit="$")
    dollars = list(re.findall(r">(\$[^<]*)<", drawn))
    assert dollars == ["$649.8", "$650", "$650.2", "$650.4", "$650.6"]


def test_a_formatter_that_does_not_tell_ticks_apart_is_not_used() -> None:
    x = Linear(649.75, 650.61, 64, 470)
    drawn = axes(x, Linear(3.8, 7.9, 300, 36), BOX, "", "", x_unit="$", x_text=lambda tick: f"${tick:.0f}")
    assert "$650.2" in drawn


@pytest.mark.parametrize(("marked", "on_the_line"), [(False, 1), (True, 2)])
def test_the_line_through_the_best_points_leaves_marked_ones_out(marked: bool, on_the_line: int) -> None:
    """The first point beats both others."""
    best = Point(1.0, 1.0, "a", "", "", marked=marked)
    others = [Point(2.0, 3.0, "a", "", ""), Point(3.0, 2.0, "a", "", "")]
    (line,) = re.findall(r'<polyline points="([^"]*)" class="front"', scatter([best, *others], BOX, ""))
    assert len(line.split()) == on_the_line


def real() -> Comparison:
    return collect(
        CompareArguments((ROOT / "results/every-setting-h200",), html=Path("x"), deadline_days=9.0)
    )


def test_every_plot_of_a_comparison_has_ticks_that_differ_and_names_its_runs() -> None:
    found = real()
    known = {row.run_id for part in found.parts for row in part.rows}
    plots = list(all_plots(found))
    assert len(plots) >= 7
    for plot in plots:
        assert plot.runs
        assert {*plot.runs} <= known
        for drawn in (inline(plot), standalone(plot)):
            shown = re.sub(r"<[^>]*>", " ", drawn)
            assert all(shown.count(run) >= 2 for run in plot.runs)  # in the picture, and for screen readers
    for plot in plots:
        if plot.name.endswith("-feasibility"):  # a grid without axes
            continue
        across = re.findall(r'y="([\d.]+)" text-anchor="middle" class="small muted">([^<]+)<', plot.body)
        for y in {y for y, _ in across}:  # ticks of one axis share a coordinate
            words = [tick for at, tick in across if at == y]
            assert len({*words}) == len(words), plot.name


def test_one_plot_has_every_model_with_its_answer_large_and_estimates_hollow() -> None:
    bundles = (ROOT / "results/hour-h200/decided.tar", ROOT / "results/proof-2xh200")
    wanted: dict[str, Any] = {"deadline_days": 50.0, "budget": 9_000.0, "estimate": ("8xh100",)}
    found = collect(CompareArguments(bundles, **wanted))
    overall = next(all_plots(found))
    assert overall.name == "days-and-costs"
    cells = [cell for cell in matrix_of(found).cells if cell.run_cost]
    marks = re.findall(r'class="(s\d mark[^"]*)"[^>]*><title>([^<]*)</title>', overall.body)
    assert len(marks) == len(cells)
    told = [words for _, words in marks]
    assert all(any(f"on {cell.machine}" in words for words in told) for cell in cells)
    hollow = {words for class_, words in marks if "estimated" in words and "hollow" in class_}
    assert len(hollow) == sum(not cell.measured for cell in cells) == 9
    assert overall.body.count('class="limit"') == 2  # the deadline and the budget
    assert {*overall.runs} == {cell.run_id for cell in cells if cell.measured}
    labels = re.findall(r'class="small">([^<]+)</text>', overall.body)
    answers = {row.name for row in matrix_of(found).rows for cell in row.cells if cell and cell.chosen}
    assert {*labels} <= answers


def test_series_of_one_colour_differ_in_their_shapes() -> None:
    drawn = [mark(0, 0, number) for number in range(8 * 8)]
    assert len({*drawn}) == len(drawn)


def test_a_plot_of_prices_to_buy_names_only_runs_on_machines_with_such_a_price() -> None:
    names = ("every-setting-2xh100", "nine-h100/pythia-1b.tar", "proof-h200/pythia-1b.tar")
    folders = tuple(ROOT / "results" / name for name in names)
    found = collect(CompareArguments(folders, rank_all=True))
    (part,) = (part for part in found.parts if part.model == "pythia-1b")
    by_name = {plot.name: {*plot.runs} for plot in money.plots(part, found)}
    priced = {
        kind: {e.row.run_id for e in part.entries if any(o.kind == kind for o in e.offers)}
        for kind in ("buy", "rent")
    }
    assert priced["buy"] < priced["rent"]
    assert by_name == {"pythia-1b-price": priced["buy"], "pythia-1b-run-cost": priced["rent"]}


def test_an_unsteady_figure_represents_no_setting_that_has_a_steady_one() -> None:
    (part,) = real().parts
    row = part.entries[0].row
    naive = next(one for one in row.rankable if one.label == "naive")
    wild = replace(naive, micro_batch=8, days=Interval(naive.days.value / 2, naive.days.value))
    assert _gains(replace(row, attempts=(wild, *row.attempts))) == _gains(row)
    alone = [one for one in row.attempts if one is not naive]
    assert max(gain.value for _, gain in _gains(replace(row, attempts=(wild, *alone)))) == pytest.approx(
        max(gain.value for _, gain in _gains(row)) / 2
    )


def test_a_plot_of_very_many_runs_names_some_below_and_all_for_screen_readers() -> None:
    runs = tuple(f"{i:012x}" for i in range(40))
    plot = Plot(
        "p", "t", "d", 640, 100, axes(Linear(0, 1, 64, 470), Linear(0, 1, 300, 36), BOX, "", ""), runs
    )
    below = " ".join(plot.run_lines)
    assert below.endswith(f"{runs[MOST_RUNS - 1]} and {40 - MOST_RUNS} more")
    assert all(run in plot.whole_description for run in runs)
    assert plot.whole_height > plot.height


def test_the_page_shows_with_what_and_when_each_run_measured(tmp_path: Path) -> None:
    first = bundle(tmp_path / "a.tar", run_id="aaaa", uuid="A", packages={"torch": "2.11.0"})
    other = bundle(
        tmp_path / "b.tar", run_id="bbbb", uuid="B", packages={"torch": "2.9.0"}, started=1_780_000_000.0
    )
    shown = page(collect(CompareArguments((first, other))))
    section = shown[shown.index('id="software"') :]
    table = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in section.split("<tr>")]
    rows = [row for row in table if len(row) == 8]
    assert [row[:6] for row in rows] == [
        ["bbbb", "1x H100 80GB HBM3", "2026-05-28", "580", "2.9.0", "none"],
        ["aaaa", "1x H100 80GB HBM3", "2026-09-21", "580", "2.11.0", "none"],
    ]
    assert {row[7] for row in rows} == {"bench 0.1.0"}
    assert rows[0][6] != rows[1][6]
