"""The report as bytes; tests/e2e opens it in a browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput, EnvironmentCannot
from bench.cli.compare import CompareArguments, collect, compare
from bench.records.trial import Crashed
from bench.report.pages.html import page, write_html
from bench.report.paper.claims import claims, paper
from bench.report.paper.figures import figures_of_the_paper, option_of
from bench.report.plots import all_plots
from bench.report.plots.plot_files import write_plots
from bench.report.plots.svg import Linear, Log, standalone
from tests.report.made import CRASH, NO_MEMORY, bundle, manifest

EVIL = "</script><script>alert(1)</script>&<img src=x onerror=alert(2)>"


def test_no_text_of_a_bundle_becomes_markup(tmp_path: Path) -> None:
    folder = tmp_path / "a&b<i>"
    folder.mkdir()
    path = bundle(
        folder / "a.tar", gpu=EVIL, settings=[((), 0.5), (("kernels",), CRASH), (("tf32",), NO_MEMORY)]
    )
    missing = folder / "<b>gone.tar"
    text = page(collect(CompareArguments((path, missing), html=tmp_path / "x")))
    assert "alert(1)" in text  # it is shown
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<b>" not in text
    assert text.count("<script") == 4  # two of data, two of code


def test_the_report_contains_no_external_links(tmp_path: Path) -> None:
    text = page(collect(CompareArguments((bundle(tmp_path / "a.tar"),), html=tmp_path / "x")))
    assert "default-src 'none'" in unescape(text)
    assert not re.search(r"(src|href)=[\"'](?!#)", text)
    assert not re.search(r"url\(|@import|https?://", text.partition('id="comparison"')[0])


def test_on_a_phone_each_figure_has_its_label(tmp_path: Path) -> None:
    text = page(collect(CompareArguments((bundle(tmp_path / "a.tar"),), html=tmp_path / "x", budget=1e6)))
    for table, unnamed in (("ranked", 0), ("offers", 2)):  # buying or renting, and the notes on it
        (body,) = re.findall(rf'<table class="{table} stacked">.*?<tbody>(.*?)</tbody>', text)
        for row in body.split("</tr>")[:-1]:
            assert row.count("<td") == row.count("data-head=") + unnamed
    assert '<td data-v="1" data-head="rank">1</td>' in text


def test_bundles_that_were_left_out_are_listed_at_the_top(tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"x")
    text = page(collect(CompareArguments((bundle(tmp_path / "a.tar"), bad), html=tmp_path / "x")))
    assert 'role="alert"' in text
    assert text.index("bad.tar") < text.index("<section")


def test_the_same_bundles_make_the_same_bytes(tmp_path: Path) -> None:
    request = CompareArguments((bundle(tmp_path / "a.tar"),), html=tmp_path / "x")
    assert page(collect(request)) == page(collect(request))


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    comparison = collect(CompareArguments((bundle(tmp_path / "a.tar"),), html=tmp_path / "x"))
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentCannot, match="cannot be written"):
        write_html(tmp_path / "file" / "x.html", comparison)


def test_every_plot_is_well_formed_and_has_a_title(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    plots = list(all_plots(collect(CompareArguments((root / "results",), rank_all=True, plots=tmp_path))))
    names = [plot.name for plot in plots]
    assert len(set(names)) == len(names)
    kinds = {name.rpartition("-")[2] for name in names}
    assert {"scaling", "feasibility", "speedups"} <= kinds
    for plot in plots:
        tree = ET.fromstring(standalone(plot))
        assert tree.find("{*}title") is not None
        assert "nan" not in plot.body
        assert "inf" not in plot.body.replace("info", "")


def test_a_smaller_cards_memory_has_a_column_of_its_own(tmp_path: Path) -> None:
    settings: list[Any] = [((), 0.5), (("kernels",), NO_MEMORY), (("tf32",), 0.4)]
    of = manifest(memory_cap_gib=24)
    paths = (
        bundle(tmp_path / "a.tar", settings=settings),
        bundle(tmp_path / "b.tar", run_id="bbbb", uuid="B", settings=settings, of=of),
    )
    found = collect(CompareArguments(paths, plots=tmp_path, rank_all=True))
    plots = {plot.name: plot for plot in all_plots(found)}
    grid = plots["tiny-gpt-neox-feasibility"]
    assert "on 2 kinds of machine" in grid.description
    assert "80.0 GiB each" in grid.body
    assert "capped at 24 GiB" in grid.body


def test_a_name_that_xml_forbids_makes_no_broken_picture(tmp_path: Path) -> None:
    settings: list[Any] = [((), 0.5), (("kernels",), Crashed("of\x1b\x00 itself")), (("tf32",), 0.4)]
    path = bundle(tmp_path / "a.tar", settings=settings)
    plots = list(all_plots(collect(CompareArguments((path,), plots=tmp_path))))
    assert len(plots) > 1
    assert any("itself" in standalone(plot) for plot in plots)
    for plot in plots:
        ET.fromstring(standalone(plot))


def test_files_of_plots_stay_in_their_folder(tmp_path: Path) -> None:
    path = bundle(tmp_path / "a.tar", run_id="aaaa")
    plots = list(all_plots(collect(CompareArguments((path,), plots=tmp_path))))
    written = write_plots(tmp_path / "plots", plots, png=False)
    assert {p.parent for p in written} == {tmp_path / "plots"}
    assert {p.suffix for p in written} == {".svg"}


def test_png_needs_an_output_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--png without --plots"):
        compare(CompareArguments((bundle(tmp_path / "a.tar"),), png=True))


# The paper's figures


def test_figures_7_12_and_13_are_drawn_from_the_papers_data() -> None:
    figures = {plot.name: plot for plot in figures_of_the_paper()}
    assert list(figures) == ["figure-7", "figure-12", "figure-13"]
    # Both figures have a mark for every feasible cell of Table 1, whose title gives days and money.
    cells = [c for c in claims() if c.method == "optimal"]
    for name in ("figure-12", "figure-13"):
        told = re.findall(r"<title>([^<]*)</title>", figures[name].body)
        assert len(told) == len(cells) == 140
    for plot in figures.values():
        ET.fromstring(standalone(plot))


def test_the_figures_money_is_the_text_of_section_4_1() -> None:
    body = next(plot.body for plot in figures_of_the_paper() if plot.name == "figure-7")
    assert "4x H100: 8 days, $127,500" in body  # "$130k"
    assert "8x A100: 9 days, $162,500" in body  # "$160k"
    assert "4x H100: 8 days, $559" in body  # "$600"
    assert "8x A100: 9 days, $801" in body  # "$800"
    costs = {(c.model, c.gpu, c.gpus): option_of(c) for c in claims() if c.method == "optimal"}
    life = 5 * 365
    for option in costs.values():
        assert option.run_cost(life) == pytest.approx(option.upfront * option.days.value / life)
    assert len(costs) == len(paper().optimal_settings)


# Scales


def test_ticks_are_round_and_inside() -> None:
    assert Linear(0, 103, 0, 1).ticks() == [0, 25, 50, 75, 100]
    assert Log(3, 2200, 0, 1).ticks() == [5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    assert Log(1, 1e6, 0, 1).ticks() == [10.0**e for e in range(7)]
    assert Linear(5, 5, 0, 1)(5) == 0
