"""What-if in a real browser: its rules are Python's, and readers move controls, see answers, send links."""

from __future__ import annotations

import json
import math
import random
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page

from bench.base.strict_json import to_json
from bench.cli import arguments
from bench.cli.compare import CompareArguments, collect
from bench.records.estimate import Interval
from bench.records.text import figures, interval_text, money_text
from bench.report.compare.comparison import Comparison
from bench.report.pages.html import write_html
from bench.report.text.comparison_table import offers
from tests.e2e.browser import chromium, new_page
from tests.report.appraisal_vectors import SEED, answered, asked, inputs
from tests.report.made import H100, bundle, manifest

pytestmark = pytest.mark.e2e

VECTORS = 10_000
QUOTE = {"date": "2026-06-01", "source": "made up for this test"}
ASKED: dict[str, Any] = {"budget": 60_000.0, "deadline_days": 0.06, "runs": 2}
H200 = "NVIDIA H200"
Rents = Mapping[tuple[str, int], float]  # by GPU and number of GPUs
RENTS: Rents = {(H100, 1): 3.0, (H100, 2): 8.0, (H200, 8): 30.0}
RENT_OF_TWO = "Rent of 2x H100 80GB HBM3, $ an hour"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write bundles of two models on machines of several kinds, with and without marks, power and prices."""
    made = tmp_path_factory.mktemp("made")
    both = manifest(models=["tiny-gpt-neox", "tiny-vit"])
    bundle(made / "a.tar", run_id="aaaa", uuid="A", of=both)
    bundle(made / "b.tar", run_id="bbbb", uuid="B", gpus=2, pass_seconds=0.52, of=both)
    bundle(made / "c.tar", run_id="cccc", uuid="C", gpu=H200, pass_seconds=0.45, watts=None, of=both)
    bundle(made / "d.tar", run_id="dddd", uuid="D", gpu=H200, pass_seconds=0.3, hot=True, of=both)
    bundle(made / "e.tar", run_id="eeee", uuid="E", gpu="NVIDIA L40S", pass_seconds=0.9, complete=False)
    bundle(made / "f.tar", run_id="ffff", uuid="F", gpus=2, on_one_node=1, pass_seconds=0.6)
    return made


def compared(folder: Path, rents: Rents = RENTS, **changes: Any) -> Comparison:
    """Compare the bundles as a command with these rents and options does."""
    machines = [{"gpu": [H100], "gpus": n, "price": 31_000 * n, **QUOTE} for n in (1, 2)]
    machines.append({"gpu": [H200], "gpus": 1, "price": 41_000, **QUOTE})
    book = {
        "schema": "bench/prices/v1", "currency": "USD", "shipped": False, "life_years": 5,
        "machines": machines, "electricity": {"price": 0.2, **QUOTE},
        "rents": [{"gpu": [gpu], "gpus": n, "price": price, **QUOTE} for (gpu, n), price in rents.items()],
    }  # fmt: skip
    prices = folder / "prices.json"
    prices.write_text(json.dumps(book))
    return collect(CompareArguments(tuple(sorted(folder.glob("*.tar"))), prices=prices, **(ASKED | changes)))


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    path = folder / "report.html"
    write_html(path, compared(folder))
    return path


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    trouble: list[str] = []
    page = new_page(browser, viewport={"width": 1280, "height": 900})
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(report.as_uri())
    yield page
    page.close()
    assert trouble == []


def batches(every: list[Any]) -> Iterator[list[Any]]:
    yield from (every[i : i + 500] for i in range(0, len(every), 500))


def of_the_page(page: Page, function: str, every: list[Any]) -> list[Any]:
    """Return the results of a function of the page for each input."""
    return [one for batch in batches(every) for one in page.evaluate(f"all => all.map({function})", batch)]


def test_the_rules_of_the_page_are_those_of_python(page: Page) -> None:
    """Order, ranks, verdicts, costs and answers are equal to the last bit."""
    every = list(inputs(VECTORS, SEED))
    function = "one => rules.appraise(one.machines, one.wish, one.life_days, one.utilisation)"
    found = of_the_page(page, function, [asked(one) for one in every])
    wrong = [one for one, there in zip(every, found, strict=True) if answered(one.appraised()) != there]
    assert len(found) == VECTORS
    assert wrong == []


def numbers() -> list[float]:
    """Return numbers of every size, and those that lie between two texts."""
    draw = random.Random(SEED)
    ties = [n + half for n in range(1_000) for half in (0.125, 0.25, 0.375, 0.5, 0.75)]
    near = [9.995, 99.95, 99.995, 99.9949999, 999.5, 1_005.0, 9_995.0, 12_345_678.9, 1e21, 3e25, 0.0099, 5e-7]
    sizes = [math.exp(draw.uniform(-30, 30)) for _ in range(VECTORS)]
    return [0.0, *near, *ties, *sizes, *(round(size, draw.randrange(4)) for size in sizes)]


def test_numbers_are_spelled_as_python_spells_them(page: Page) -> None:
    every = numbers()
    assert of_the_page(page, "x => rules.figures(x)", every) == [figures(x) for x in every]
    assert of_the_page(page, "x => rules.figures(x, 6)", every) == [figures(x, 6) for x in every]
    spelled = of_the_page(page, "x => rules.moneyText(x, 'EUR ')", every)
    assert spelled == [money_text(x, "EUR") for x in every]
    draw = random.Random(SEED)
    around = [Interval(x, draw.choice([0.0, 1.0, x * draw.random(), draw.choice(every)])) for x in every if x]
    found = of_the_page(page, "i => rules.intervalText(i)", to_json(around))
    assert found == [interval_text(one) for one in around]


NUMBERS = (
    "1", "14", "14.5", ".5", "5.", "1,000", "1e3", " 7 ", "+3", "-3", "0", "0.0", "-0", "1e400", "1e-400",
    "nan", "infinity", "", "x", "1 2", "0x10", "1e", "12,34", "--1", "1.2.3", "100", "100.1", "1e2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "option", "endings"),
    [
        ("positive", arguments.positive, ("", "$")),
        ("days", arguments.days, ("", "d", "h", "dd", "hd", " d", "m")),
        ("percent", arguments.percent, ("", "%", "%%", " %")),
        ("count", arguments.count, ("", "d")),
    ],
)
def test_a_control_takes_and_refuses_what_the_option_does(
    page: Page, name: str, option: Callable[[str], float], endings: tuple[str, ...]
) -> None:
    def taken(text: str) -> float | None:
        try:
            return option(text)
        except ArgumentTypeError:
            return None

    texts = [number + ending for number in NUMBERS for ending in endings]
    expected = [taken(text) for text in texts]
    assert None in expected
    assert len(set(expected)) > 3
    assert of_the_page(page, f"text => rules.parse.{name}(text).value ?? null", texts) == expected


def control(page: Page, words: str) -> Locator:
    return page.locator("#what-if").get_by_label(words, exact=True)


def opened(page: Page) -> None:
    page.locator("#what-if > details > summary").click()
    page.get_by_text("Rents of 5 kinds of machine").click()


def shown_offers(page: Page) -> list[list[tuple[tuple[str, ...], bool]]]:
    """Return the offers of each model as the section shows them: texts, and whether the row is marked."""
    rows = """tables => tables.map(t => [...t.tBodies[0].rows].map(
        r => [[...r.cells].slice(1).map(c => c.textContent), r.className === 'chosen']))"""
    found = page.locator("#what-if table").evaluate_all(rows)
    return [[(tuple(texts), chosen) for texts, chosen in table if texts[0]] for table in found]


def python_offers(comparison: Comparison) -> list[list[tuple[tuple[str, ...], bool]]]:
    """Return the offers of each model as the command has them, without what money trains.

    The section leaves these two columns to the model's own table.
    """
    found = [offers(part, comparison) for part in comparison.parts if part.entries]
    return [[((*texts[:5], *texts[7:]), chosen) for texts, chosen in rows] for rows in found]


def link_of(page: Page) -> str:
    """Return the address that the page itself sees; the driver learns of a change of it a little later."""
    return str(page.evaluate("location.href"))


def lines(page: Page) -> list[str]:
    return page.locator("#what-if-answers li").all_text_contents()


@pytest.mark.parametrize(
    ("written", "options", "rents"),
    [
        ({"Budget, $": "130,000", "Deadline, days": "36h"}, {"budget": 130_000.0, "deadline_days": 1.5}, {}),
        ({"Budget, $": "", "Deadline, days": "0.0417"}, {"budget": None, "deadline_days": 0.0417}, {}),
        ({"Budget, $": "0.01", "Deadline, days": ""}, {"budget": 0.01, "deadline_days": None}, {}),
        ({"Number of runs": "40000", "Utilisation, %": "33.3"}, {"runs": 40_000, "utilisation": 0.333}, {}),
        (  # only the machine with a mark is cheap enough
            {"Budget, $": "0.8", "Rent of 1x H200, $ an hour": "0.5"}, {"budget": 0.8}, {(H200, 1): 0.5},
        ),
        (
            {"Rent of 1x H100 80GB HBM3, $ an hour": "3.5",
             "Rent of 2x H100 80GB HBM3 on 2 nodes, $ an hour": "7"}, {}, {(H100, 1): 3.5},
        ),
    ],
)  # fmt: skip
def test_the_page_says_what_the_command_says_with_these_options(
    page: Page, folder: Path, written: Mapping[str, str], options: Mapping[str, Any], rents: Rents
) -> None:
    assert shown_offers(page) == python_offers(compared(folder))  # before anything is changed
    opened(page)
    for words, text in written.items():
        control(page, words).fill(text)
    found = compared(folder, RENTS | rents, **options)
    assert shown_offers(page) == python_offers(found)
    said = "\n".join(lines(page))
    marks = {mark for part in found.parts for entry in part.entries for o in entry.offers for mark in o.marks}
    assert all(mark in said for mark in marks)
    assert ("nothing fits the budget of" in said) == any(part.nothing_in_budget for part in found.parts)
    assert ("certain to meet the deadline of" in said) == any(part.nothing_in_time for part in found.parts)
    assert ("SLOWED" in said) == (rents == {(H200, 1): 0.5})


def test_a_reader_changes_the_question_and_sends_the_link(page: Page, folder: Path, browser: Browser) -> None:
    assert not control(page, "Budget, $").is_visible()
    for summary in page.locator("#what-if > details > summary, #what-if form summary").all():
        summary.press("Enter")
    assert page.locator("#what-if-state").inner_text() == "As it was asked"
    control(page, "Budget, $").fill("60.00")
    control(page, "Deadline, days").fill("2h")
    control(page, "Number of runs").fill("12")
    control(page, "Utilisation, %").fill("40%")
    control(page, RENT_OF_TWO).fill("4.25")
    control(page, RENT_OF_TWO).blur()
    options: dict[str, Any] = {"budget": 60.0, "deadline_days": 2 / 24, "runs": 12, "utilisation": 0.4}
    found = compared(folder, {**RENTS, (H100, 2): 4.25}, **options)
    assert shown_offers(page) == python_offers(found)
    assert lines(page)[0] == (
        "fastest in budget, cheapest by the deadline: rent 2x H100 80GB HBM3 at $4.25 an hour: "
        "0.02407 ±0.00097 days, $2.46 a run, $29.47 for 12 runs"
    )
    link = link_of(page)
    changed = "budget=60&deadline=0.08333333333333333&runs=12&utilisation=40&rent%3A2x+H100+80GB+HBM3=4.25"
    assert link.endswith(f"#what-if?{changed}")

    other = new_page(browser)
    other.goto(link)
    assert control(other, "Number of runs").is_visible()
    assert control(other, "Number of runs").input_value() == "12"
    assert shown_offers(other) == python_offers(found)
    assert lines(other) == lines(page)
    other.close()

    page.get_by_role("button", name="As asked").click()
    assert shown_offers(page) == python_offers(compared(folder))
    assert link_of(page).endswith("#what-if")


def test_the_keyboard_moves_a_slider_and_its_right_end_is_no_limit(page: Page, folder: Path) -> None:
    opened(page)
    slider = control(page, "Budget, $: slider")
    slider.press("Home")
    least = control(page, "Budget, $").input_value()
    slider.press("ArrowRight")
    more = control(page, "Budget, $").input_value()
    assert 0 < float(least) < float(more) < 1.2 * float(least)
    assert slider.get_attribute("aria-valuetext") == more
    assert shown_offers(page) == python_offers(compared(folder, budget=float(more)))
    slider.press("End")
    assert control(page, "Budget, $").input_value() == ""
    assert slider.get_attribute("aria-valuetext") == "no limit"
    assert shown_offers(page) == python_offers(compared(folder, budget=None))
    assert link_of(page).endswith("#what-if?budget=")
    control(page, "Deadline, days").fill("")
    assert set(lines(page)) == {"no limit is given: set a budget or a deadline"}


@pytest.mark.parametrize("text", ["0", "-5", "101", "zero", ""])
def test_a_number_that_the_command_refuses_is_refused_and_changes_nothing(page: Page, text: str) -> None:
    opened(page)
    before = shown_offers(page)
    field = control(page, "Utilisation, %")
    field.fill(text)
    field.blur()
    assert field.get_attribute("aria-invalid") == "true"
    mistake = page.locator(f"#{field.get_attribute('aria-describedby')}")
    assert mistake.is_visible()
    assert len(mistake.inner_text()) > 10
    assert shown_offers(page) == before
    assert link_of(page).endswith("#what-if")
    field.fill("50")
    assert field.get_attribute("aria-invalid") == "false"
    assert not mistake.is_visible()
    assert shown_offers(page) != before


@pytest.mark.parametrize(
    "bad", ["utilisation=0", "budget=-1&runs=1.5", "rent%3A9x+nothing=2&what=ever", "=%E0%A4%A"]
)
def test_a_link_with_what_no_control_takes_shows_what_was_asked(
    browser: Browser, report: Path, folder: Path, bad: str
) -> None:
    trouble: list[str] = []
    page = new_page(browser)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(f"{report.as_uri()}#what-if?{bad}")
    assert shown_offers(page) == python_offers(compared(folder))
    page.close()
    assert trouble == []


def test_a_link_inside_of_the_page_takes_the_changes_along(
    page: Page, folder: Path, browser: Browser
) -> None:
    opened(page)
    control(page, "Number of runs").fill("7")
    page.locator("nav a", has_text="tiny-vit").first.click()
    page.wait_for_url("**#tiny-vit?runs=7")
    other = new_page(browser, viewport={"width": 800, "height": 300})
    other.goto(link_of(page))
    assert control(other, "Number of runs").input_value() == "7"
    assert abs(other.locator("section[id='tiny-vit']").bounding_box()["y"]) < 2  # type: ignore[index]
    other.close()


def test_a_rent_can_be_given_where_no_quote_is_and_be_taken_away(page: Page) -> None:
    opened(page)

    def rented(machine: str) -> list[str]:
        every = [texts for table in shown_offers(page) for texts, _ in table]
        return [price for kind, name, _, price, *_ in every if kind == "rent" and name.startswith(machine)]

    assert rented("1x L40S") == []
    control(page, "Rent of 1x L40S, $ an hour").fill("0.75")
    assert rented("1x L40S") == ["$0.75 an hour"]
    assert len(rented("1x H200")) == 4
    control(page, "Rent of 1x H200, $ an hour").fill("")
    assert rented("1x H200") == []


def test_without_javascript_the_answer_stands_and_no_control_shows(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{report.as_uri()}#what-if?runs=7")
    assert not page.locator("#what-if").is_visible()
    assert page.locator("tr.chosen").count() > 0
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_the_section_fits_and_can_be_read(browser: Browser, report: Path, scheme: Any) -> None:
    page = new_page(
        browser, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True, color_scheme=scheme
    )
    page.goto(f"{report.as_uri()}#what-if?utilisation=0&runs=3")
    page.locator("#what-if details details").evaluate_all("all => all.forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    rightmost = (
        "Math.max(...[...document.querySelectorAll('#what-if *')].map(e => e.getBoundingClientRect().right))"
    )
    assert page.evaluate(rightmost) <= 360
    contrast = """selector => {
      const of = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
          .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const e = document.querySelector(selector), ink = of(getComputedStyle(e).color);
      let paper = e;
      while (getComputedStyle(paper).backgroundColor === 'rgba(0, 0, 0, 0)') paper = paper.parentElement;
      const under = of(getComputedStyle(paper).backgroundColor);
      return (Math.max(ink, under) + 0.05) / (Math.min(ink, under) + 0.05);
    }"""
    for selector in (".wishes label", ".wishes input", ".mistake:not(:empty)", "tr.beyond td", "#what-if li"):
        assert page.evaluate(contrast, selector) >= 4.5, selector  # WCAG AA
    page.close()


def test_every_control_has_a_name_and_the_tab_key_reaches_all_of_them(page: Page) -> None:
    opened(page)
    name = "(e => e.labels?.[0]?.textContent ?? e.textContent)"
    names = page.locator("#what-if form :is(input, button, summary)").evaluate_all(f"all => all.map({name})")
    assert len(set(names)) == len(names) == 2 * 9 + 2
    page.locator("#what-if > details > summary").focus()
    reached = []
    for _ in names:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(f"{name}(document.activeElement)"))
    assert reached == names
