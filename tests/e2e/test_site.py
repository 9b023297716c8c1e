"""The site in a real browser: on a desktop, on a phone and dark; searched, and checked by axe."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Page, Request

from tests.documented_commands import printed
from tests.e2e.browser import chromium, new_page
from tests.e2e.reader import LINK_ENVIRONMENT, Reader
from tests.e2e.test_report import axe
from website.built import mistakes
from website.gallery import REPORTS
from website.sources import ROOT, documents, place_of

__all__ = ["axe"]
pytestmark = pytest.mark.e2e

NOT_OF_THE_SITE = shutil.ignore_patterns(".git", ".venv", "out", "__pycache__", ".*_cache")
SCREENS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True},
}
KINDS_OF_PAGES = (  # one of each kind
    "index.html", "running.html", "glossary.html", "guides/accept-nodes.html", "commands/index.html",
    "commands/compare.html", "schemas/manifest-v1.html", "adr/index.html", "gallery.html",
    "pictures/index.html",
)  # fmt: skip
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}


EMPTY_INDEX = {
    "config": {"lang": ["en"], "separator": r"[\s\-]+", "pipeline": [], "fields": {"text": {"boost": 1}}},
    "docs": [],
}
# The search says what to do once it has read the index: letters that come before are an error of its script.
READY = """() => !document.querySelector('.md-search-result__meta').textContent.includes('Initializing')"""
LINKED = """wanted =>
  [...document.querySelectorAll('.md-search-result__link')].some(a => a.href.startsWith(wanted))"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the site in a copy of this checkout that has this environment."""
    folder = tmp_path_factory.mktemp("site") / "checkout"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=NOT_OF_THE_SITE)
    reader = Reader(folder, {"PYTHONPATH": str(folder)})
    reader.type(f"{LINK_ENVIRONMENT} && touch .venv/.docs")
    assert "python3 -m http.server" in reader.type(printed("make docs"))
    return folder / "out/site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@contextmanager
def opened(
    browser: Browser, address: str, screen: str, searches: bool = False, **options: Any
) -> Iterator[Page]:
    """Yield a page in which nothing may go wrong: no message on the console, no failed or foreign request.

    A page that is not searched is given an index without documents: each page would read that of the whole
    site, which takes most of its time.
    """
    trouble: list[str] = []
    page = new_page(browser, **SCREENS[screen], **options)
    if not searches:
        page.route(f"{address}search/search_index.json", lambda route: route.fulfill(json=EMPTY_INDEX))
    page.on("console", lambda message: trouble.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"{page.url}: {error}"))
    page.on("requestfailed", lambda request: _note_failed(request, trouble))
    page.on(
        "response",
        lambda answer: trouble.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None,
    )
    page.on("request", lambda request: _note_foreign(request.url, address, trouble))
    yield page
    page.close()
    assert trouble == []


def _note_failed(request: Request, trouble: list[str]) -> None:
    if request.failure != "net::ERR_ABORTED":  # the test went to another page
        trouble.append(f"{request.url}: {request.failure}")


def _note_foreign(url: str, address: str, trouble: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        trouble.append(f"{url} is not of the site")


def test_no_link_is_broken_and_every_page_is_reached(site: Path) -> None:
    assert mistakes(site) == []
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {str(place_of(source)).replace(".md", ".html") for source in documents()} <= built
    assert {f"gallery/{report.name}.html" for report in REPORTS} <= built
    assert len(built) > 100


def test_no_page_is_wider_than_a_phone_and_none_has_an_error(
    browser: Browser, site: Path, address: str
) -> None:
    """Decisions are left out: there are many, of text alone."""
    wide = []
    names = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    with opened(browser, address, "phone") as page:
        for name in (name for name in names if not name.startswith("adr/0")):
            page.goto(address + name)
            if page.evaluate("document.documentElement.scrollWidth") > 360:
                wide.append(name)
    assert wide == []


@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing(browser: Browser, address: str, axe: str, screen: str) -> None:
    found = []
    with opened(browser, address, screen, bypass_csp=True) as page:
        for name in KINDS_OF_PAGES:
            page.goto(address + name)
            page.evaluate(axe)
            run = page.evaluate("wanted => axe.run(document, wanted)", WCAG)
            assert len(run["passes"]) > 15
            found += [(name, one["id"], one["nodes"][0]["html"]) for one in run["violations"]]
            assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]  # type: ignore[index]
    assert found == []


def test_dark_is_what_the_system_asks_for_and_a_button_changes_it(browser: Browser, address: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, address, "desktop") as light, opened(browser, address, "dark") as dark:
        for page in (light, dark):
            page.goto(address)
        assert light.evaluate(background) != dark.evaluate(background)
        dark.get_by_title("Switch to light mode").click()
        assert dark.evaluate(background) == light.evaluate(background)


@pytest.mark.parametrize("screen", ["desktop", "phone"])
@pytest.mark.parametrize(
    ("words", "page_found"),
    [
        ("reproduce", "commands/reproduce.html"),
        ("glossary", "glossary.html"),
        ("gradient_check", "schemas/manifest-v1.html"),
    ],
)
def test_the_search_finds(browser: Browser, address: str, screen: str, words: str, page_found: str) -> None:
    with opened(browser, address, screen, searches=True) as page:
        page.goto(address + "running.html")
        if screen == "phone":
            page.locator("label[for=__search].md-header__button").click()
        page.locator(".md-search__input").click()
        page.wait_for_function(READY)
        page.locator(".md-search__input").press_sequentially(words, delay=100)  # as a person types
        # Results of the first letters are shown until those of the whole word come.
        page.wait_for_function(LINKED, arg=address + page_found)


def test_the_menu_of_a_phone_leads_to_a_page(browser: Browser, address: str) -> None:
    with opened(browser, address, "phone") as page:
        page.goto(address)
        page.locator("label.md-header__button[for=__drawer]").click()
        menu = page.locator("nav.md-nav--primary")
        menu.locator("label.md-nav__link", has_text="Tasks").first.click()
        menu.get_by_role("link", name="Prices", exact=True).click()
        page.wait_for_url("**/prices.html")


def test_opened_as_a_file_the_site_says_what_the_search_needs(browser: Browser, site: Path) -> None:
    page = new_page(browser)
    page.goto((site / "index.html").as_uri())
    field = page.locator(".md-search__input")
    assert "python3 -m http.server" in (field.get_attribute("placeholder") or "")
    assert field.is_disabled()
    page.close()


ELEMENTS = frozenset(
    (
        "h1",
        "h2",
        "h3",
        "h4",
        "ul",
        "ol",
        "li",
        "table",
        "tr",
        "th",
        "td",
        "pre",
        "code",
        "strong",
        "em",
        "img",
    )
)


@dataclass
class Structure(HTMLParser):
    """The elements and the letters of an article."""

    elements: Counter[str] = field(default_factory=Counter)
    letters: list[str] = field(default_factory=list)
    is_inside: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.is_inside |= tag == "article"
        if self.is_inside and tag in ELEMENTS:
            self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self.is_inside &= tag != "article"

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            self.letters += data.replace("¶", "").split()  # ¶ is the link of a heading


def test_pages_read_as_the_documents_do_on_the_forge(site: Path) -> None:
    """Python-Markdown is not CommonMark: a list may become a paragraph, code may show a backslash."""
    forge = MarkdownIt("commonmark").enable("table")
    for source in documents():
        there, here = Structure(is_inside=True), Structure()
        there.feed(forge.render((ROOT / source).read_text(encoding="utf-8")))
        here.feed((site / str(place_of(source)).replace(".md", ".html")).read_text(encoding="utf-8"))
        assert here.elements == there.elements, source
        assert "".join(here.letters) == "".join(there.letters), source
        assert there.letters
