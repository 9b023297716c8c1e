"""The report in a real browser: offline, light and dark, on a phone, sorted, filtered, without JavaScript."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from bench.cli.compare import CompareArguments, collect
from bench.report.compare.comparison import Comparison
from bench.report.pages.check_html import write_check_html
from bench.report.pages.html import USUAL, write_html
from bench.report.text.comparison_table import json_text
from tests.conftest import shared_folder
from tests.e2e.browser import chromium, new_page
from tests.e2e.services import locked
from tests.needs import DEBIAN_PACKAGES
from tests.node_check.checks.node import evidence
from tests.node_check.made import results
from tests.report.made import copies, texts

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
QUOTE = {"date": "2026-06-01", "source": "made up for this test"}
PRICES = {
    "schema": "bench/prices/v1", "currency": "USD",
    "machines": [{"gpu": ["NVIDIA H200"], "gpus": n, "price": 40_000 * n, **QUOTE} for n in (1, 2)],
    "rents": [{"gpu": ["NVIDIA H200"], "price": 3.5, **QUOTE}],
}  # fmt: skip
# Right edge of the widest element, in pixels.
RIGHTMOST = (
    "what => Math.max(...[...document.querySelectorAll(what)].map(e => e.getBoundingClientRect().right))"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    """Write the report of every committed bundle, all ranked together, so that it is full."""
    folder = tmp_path_factory.mktemp("report")
    prices = folder / "prices.json"
    prices.write_text(json.dumps(PRICES))
    request = CompareArguments(
        (ROOT / "results",), prices=prices, budget=50_000.0, deadline_days=20.0, rank_all=True,
        html=folder / "report.html",
    )  # fmt: skip
    comparison = collect(request)
    assert request.html is not None
    write_html(request.html, comparison)
    return comparison, request.html


@pytest.fixture(scope="module")
def axe() -> str:
    """The text of axe-core, which is downloaded once in a session."""
    folder, script = shared_folder() / "axe", Path(__file__).with_name("axe.sh")
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            subprocess.run([DEBIAN_PACKAGES, "npm"], check=True)
            folder.mkdir()
            subprocess.run([script, folder], check=True, stdout=subprocess.DEVNULL)
    return (folder / "package/axe.min.js").read_text()


@pytest.fixture
def opened(browser: Browser, real: tuple[Comparison, Path]) -> Iterator[Page]:
    with_trouble: list[str] = []
    page = new_page(browser, viewport={"width": 1280, "height": 900})
    page.on("console", lambda message: with_trouble.append(message.text))
    page.on("pageerror", lambda error: with_trouble.append(str(error)))
    page.on(
        "request", lambda request: with_trouble.append(request.url) if not _is_file(request.url) else None
    )
    page.goto(real[1].as_uri())
    yield page
    page.close()
    assert with_trouble == []  # no request and no error


def _is_file(url: str) -> bool:
    return url.startswith("file:")


def test_every_figure_of_the_table_is_in_the_page(opened: Page, real: tuple[Comparison, Path]) -> None:
    comparison, _ = real
    with_figures = [part for part in comparison.parts if part.entries]
    assert len(with_figures) >= 9
    for part in with_figures:
        section = opened.locator(f"section[id='{part.model}']")
        shown = section.locator("td").all_inner_texts()
        spelled = texts(part, comparison)
        assert len(spelled) > 10
        missing = [text for text in spelled if text not in shown]
        assert missing == []


def test_a_model_that_no_machine_has_a_figure_for_is_named(browser: Browser, tmp_path: Path) -> None:
    crashed, measured = "side-by-side-h200/granite-h-1b-crash.tar", "zoo-h200/gpt2.tar"
    html = tmp_path / "report.html"
    bundles = tuple(ROOT / "results" / name for name in (crashed, measured))
    comparison = collect(CompareArguments(bundles, html=html))
    write_html(html, comparison)
    assert [part.model for part in comparison.parts if not part.entries] == ["granite-h-1b"]
    page = new_page(browser)
    page.goto(html.as_uri())
    for model, named in (("granite-h-1b", True), ("gpt2", False)):
        found = page.locator(f"section[id='{model}']").inner_text()
        assert ("No machine has a figure" in found) is named
    page.close()


def test_the_page_holds_the_comparison_itself(opened: Page, real: tuple[Comparison, Path]) -> None:
    inside = json.loads(opened.locator("#comparison").text_content() or "")
    outside = json.loads(json_text(real[0]))
    for part in outside["parts"]:
        for one in [*part["entries"], *part["apart"]]:
            one["row"]["telemetry"] = None  # telemetry is drawn, and left out of the JSON
            for attempt in one["row"]["attempts"]:  # a page may hold thousands of attempts
                for field, usual in USUAL.items():
                    if attempt[field] == usual:
                        del attempt[field]
    assert inside == outside


def test_a_click_sorts_and_another_reverses_the_order(opened: Page) -> None:
    table = opened.locator("section#pythia-160m table.ranked")
    days = [head.strip() for head in table.locator("th").all_inner_texts()].index("days")

    def column() -> list[float]:
        cells = table.locator(f"tbody tr td:nth-child({days + 1})")
        return [float(v) for v in cells.evaluate_all("cells => cells.map(c => c.dataset.v)")]

    before = column()
    assert len(before) > 2
    button = table.locator("th button", has_text="days")
    button.click()
    assert column() == sorted(before)
    button.press("Enter")  # the keyboard works too
    assert column() == sorted(before, reverse=True)
    assert table.locator("th[aria-sort=descending]").count() == 1


def test_the_filter_hides_rows_that_do_not_match(opened: Page) -> None:
    every = opened.locator("table.ranked tbody tr").count()
    offers = opened.locator("table.offers tbody tr").count()
    wanted = opened.get_by_label("Show only rows with")
    wanted.fill("fsdp 2x h200")
    visible = _visible(opened, "table.ranked")
    assert 0 < len(visible) < every
    assert all("fsdp" in row and "2x H200" in row for row in visible)
    offered = _visible(opened, "table.offers")  # rows of the same machines
    assert 0 < len(offered) < offers
    assert all("2x H200" in row for row in offered)
    assert opened.get_by_role("status").inner_text() == f"{len(visible) + len(offered)} rows"
    wanted.fill("fsdp 2x h200 buy")
    assert _visible(opened, "table.ranked") == []
    assert _visible(opened, "table.offers") == [row for row in offered if row.lstrip().startswith("buy")]
    wanted.fill("")
    assert len(_visible(opened, "table.offers")) == offers


def _visible(page: Page, table: str) -> list[str]:
    return [row.inner_text() for row in page.locator(f"{table} tbody tr").all() if row.is_visible()]


LUMINANCE = """() => {
  const of = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = of(getComputedStyle(document.body).backgroundColor);
  const inks = ['h1', '.muted', 'nav a', 'td', 'th button', 'figcaption'].map(s => document.querySelector(s));
  const texts = [...document.querySelectorAll('svg.plot text')].slice(0, 50);
  const contrast = (ink, behind) => (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
  const found = inks.map(e => contrast(of(getComputedStyle(e).color), paper));
  found.push(...texts.map(e => contrast(of(getComputedStyle(e).fill), paper)));
  // Cells have a background of their own, but for estimates.
  for (const cell of document.querySelectorAll('.matrix td:not(:empty), tr.chosen td')) {
    const own = getComputedStyle(cell.matches('.matrix td') ? cell : cell.parentElement).backgroundColor;
    const behind = own === 'rgba(0, 0, 0, 0)' ? paper : of(own);
    for (const e of [cell, ...cell.children]) found.push(contrast(of(getComputedStyle(e).color), behind));
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_themes(
    browser: Browser, real: tuple[Comparison, Path], scheme: Any
) -> None:
    page = new_page(browser, color_scheme=scheme)
    page.goto(real[1].as_uri())
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert min(page.evaluate(LUMINANCE)) >= 4.5  # WCAG AA
    page.get_by_role("button", name="Light / dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    assert min(page.evaluate(LUMINANCE)) >= 4.5
    page.close()


def test_on_a_phone_only_scrolling_elements_are_wider_than_the_page(
    browser: Browser, real: tuple[Comparison, Path]
) -> None:
    page = new_page(browser, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page.goto(real[1].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    # A plot is fully visible, including its legend; a plot of many machines is as wide as its text needs, and
    # scrolls.
    assert page.evaluate(RIGHTMOST, ":not(.wide) > svg") <= 360
    page.close()


def test_scrolling_elements_show_a_shadow_at_their_edge(
    browser: Browser, real: tuple[Comparison, Path]
) -> None:
    """The shadow disappears at the end of the table, where the cover of the shadow has scrolled into view."""
    page = new_page(browser, viewport={"width": 1000, "height": 740})
    page.goto(real[1].as_uri())
    scrolls = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    edges = f"{scrolls}.map(e => getComputedStyle(e).backgroundAttachment)"
    assert set(page.evaluate(edges)) == {"local, local, scroll, scroll"}
    page.close()


def test_on_a_phone_the_findings_of_a_node_stand_under_each_other(browser: Browser, tmp_path: Path) -> None:
    found = evidence(tmp_path, rates={"matmul": {"5": 0.7}})
    write_check_html(tmp_path / "check.html", results(found), found)
    page = new_page(browser, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page.goto((tmp_path / "check.html").as_uri())
    assert page.evaluate(RIGHTMOST, ".stacked td") <= 360
    heading = "e => getComputedStyle(e, '::before').content"
    assert page.locator(".stacked td:last-child").first.evaluate(heading) == '"what to do: "'
    page.close()


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_no_column_of_a_table_is_hidden_behind_an_edge(
    browser: Browser, real: tuple[Comparison, Path], width: int
) -> None:
    page = new_page(browser, viewport={"width": width, "height": 900})
    page.goto(real[1].as_uri())
    hidden = """() => [...document.querySelectorAll('table')].map(t => t.parentElement)
        .filter(p => p.scrollWidth > p.clientWidth).map(p => p.textContent.slice(0, 60))"""
    assert page.evaluate(hidden) == []
    page.close()


def test_on_a_phone_a_machine_is_a_block(browser: Browser, real: tuple[Comparison, Path]) -> None:
    page = new_page(browser, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page.goto(real[1].as_uri())
    for table in ("ranked", "offers"):
        assert page.locator(f"table.{table}").count() > 1
        assert page.evaluate(RIGHTMOST, f"table.{table} td") <= 360
    page.close()


def test_the_report_is_complete_without_javascript(browser: Browser, real: tuple[Comparison, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(real[1].as_uri())
    for part in real[0].parts:
        shown = page.locator(f"section[id='{part.model}'] td").all_inner_texts()
        assert set(texts(part, real[0])) <= set(shown)
    assert not page.locator(".tools").is_visible()  # without JavaScript there must be no button
    context.close()


def test_screen_readers_get_all_information(opened: Page) -> None:
    assert opened.locator("html").get_attribute("lang") == "en"
    plots = opened.locator("svg.plot")
    assert plots.count() > 15
    for plot in plots.all():
        assert plot.get_attribute("role") == "img"
        assert len(plot.locator("> title").text_content() or "") > 10
        assert len(plot.locator("> desc").text_content() or "") > 10
    for head in opened.locator("th").all():
        assert head.get_attribute("scope") in ("col", "row")
    levels = opened.locator("h1, h2, h3").evaluate_all("all => all.map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert opened.locator("button, input, a").evaluate_all(
        "all => all.every(e => (e.textContent + (e.labels?.[0]?.textContent ?? '')).trim().length > 0)"
    )


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (390, "dark")]
)
def test_axe_finds_nothing(
    browser: Browser, real: tuple[Comparison, Path], axe: str, width: int, scheme: Any
) -> None:
    phone = width < 500
    options: dict[str, Any] = {"color_scheme": scheme, "is_mobile": phone, "bypass_csp": True}
    page = new_page(browser, viewport={"width": width, "height": 844}, **options)
    page.goto(real[1].as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.evaluate(axe)
    # Of thousands of texts in tables and plots, the contrast is tested above, on each kind of background.
    rules = {"rules": {"color-contrast": {"enabled": False}}, "resultTypes": ["violations"]}
    found = page.evaluate("rules => axe.run(document, rules)", rules)
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
    assert len(found["passes"]) > 20
    page.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_first_screen_answers_the_question(
    browser: Browser, real: tuple[Comparison, Path], width: int, height: int
) -> None:
    page = new_page(browser, viewport={"width": width, "height": height}, is_mobile=width < 500)
    page.goto(real[1].as_uri())
    for wanted in (".asked", ".answer strong", ".matrix td.chosen"):
        box = page.locator(wanted).first.bounding_box()
        assert box is not None
        assert box["y"] >= 0 and box["y"] + box["height"] <= height, wanted
    page.close()


def test_no_text_is_drawn_outside_of_its_picture(opened: Page) -> None:
    opened.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    outside = opened.evaluate(
        """[...document.querySelectorAll('svg.plot')].flatMap(s => {
          const box = s.getBoundingClientRect();
          return [...s.querySelectorAll('text')].filter(t => {
            const r = t.getBoundingClientRect();
            return r.left < box.left - 1 || r.right > box.right + 1 || r.bottom > box.bottom + 1;
          }).map(t => s.querySelector('title').textContent + ': ' + t.textContent);
        })"""
    )
    assert outside == []


def test_a_hundred_bundles_make_less_than_two_megabytes_and_still_work(
    browser: Browser, tmp_path: Path
) -> None:
    copies(ROOT / "results/every-setting-h200/pythia-160m-2gpus.tar", tmp_path, 100)
    request = CompareArguments((tmp_path,), html=tmp_path / "report.html")
    assert request.html is not None
    write_html(request.html, collect(request))
    assert request.html.stat().st_size < 2_000_000
    page = new_page(browser)
    page.goto(request.html.as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    assert page.locator("table.ranked tbody tr").count() == 100
    page.get_by_label("Show only rows with").fill("000000000063")
    assert page.get_by_role("status").inner_text() == "2 rows"  # the machine, and its rent
    page.close()


def test_printed_pages_cut_no_column_and_are_black_on_white(opened: Page) -> None:
    opened.get_by_role("button", name="Light / dark").click()
    dark = opened.evaluate("getComputedStyle(document.body).color")
    opened.set_viewport_size({"width": 720, "height": 1000})  # width of A4 without margins
    opened.emulate_media(media="print")
    assert opened.evaluate(RIGHTMOST, "table.ranked, table.offers") <= 720
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.evaluate("getComputedStyle(document.body).color") != dark


def test_tables_and_columns_have_names_for_screen_readers(opened: Page) -> None:
    section = opened.locator("section[id='pythia-160m']")
    assert section.get_by_role("region", name="pythia-160m: machines by days").count() == 1
    offers = section.get_by_role("region", name="pythia-160m: to buy and to rent")
    heads = offers.get_by_role("columnheader").all_inner_texts()
    assert len(heads) == len(list(filter(None, heads))) > 4
    assert offers.get_by_role("columnheader", name="buy or rent").count() == 1
