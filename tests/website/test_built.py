"""The check of a built site finds links that lead nowhere, lost pages, and use of the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from website import __main__ as program
from website.built import mistakes, target

GOOD = '<h1 id="top">a</h1><a href="b/c.html#deep">c</a> <a href="#top">up</a> <a href="https://example.org">out</a>'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "b/c.html").write_text(
        '<p id="deep"><a href="../index.html">a</a> <a href="../file.json">f</a></p>'
    )
    (tmp_path / "file.json").write_text("{}")
    (tmp_path / "404.html").write_text('<a href="/index.html">start</a>')
    return tmp_path


def test_a_good_site_has_no_mistakes(site: Path) -> None:
    assert mistakes(site) == []


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ('<a href="none.html">x</a>', "none.html does not exist"),
        ('<a href="b">x</a>', "b does not exist"),
        ('<img src="p.svg">', "p.svg does not exist"),
        ('<a href="b/c.html#nowhere">x</a>', "b/c.html#nowhere: there is no such anchor"),
        ('<a href="#nowhere">x</a>', "#nowhere: there is no such anchor"),
        ('<a href="../../secret">x</a>', "../../secret does not exist"),
        ('<script src="https://x.example/"></script>', "https://x.example/ is fetched from the network"),
        ('<link href="//fonts.example/a.css">', "//fonts.example/a.css is fetched from the network"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_page(site: Path, added: str, said: str) -> None:
    (site / "index.html").write_text(GOOD + added)
    assert mistakes(site) == [f"index.html: {said}"]


def test_a_page_that_no_link_reaches_is_a_mistake(site: Path) -> None:
    (site / "lost.html").write_text('<a href="index.html">start</a>')
    assert mistakes(site) == ["lost.html: no link leads here"]


def test_a_style_sheet_that_needs_the_network_is_a_mistake(site: Path) -> None:
    (site / "a.css").write_text(
        '@import "https://fonts.example/a.css"; p { background: url(https://x.example/b.png) }'
    )
    assert mistakes(site) == [
        "a.css: https://fonts.example/a.css is fetched from the network",
        "a.css: https://x.example/b.png is fetched from the network",
    ]


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("x.html", ("b/x.html", "")), ("/x.html", ("x.html", "")), ("../#a", ("index.html", "a")),
        ("", ("b/c.html", "")),
        ("a%20b.html#%C3%A9", ("b/a b.html", "é")), ("mailto:a@example.org", None), ("//example.org/a", None),
        (".", ("b/index.html", "")), ("/", ("index.html", "")),
    ],
)  # fmt: skip
def test_addresses_are_read_as_a_browser_does(address: str, place: tuple[str, str] | None) -> None:
    assert target("b/c.html", address) == place


def test_mistakes_end_the_program_with_an_error(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "build", lambda out: (out / "lost.html").write_text(""))
    assert program.main(["--out", str(site)]) == 1
    assert "1 mistakes in " in capsys.readouterr().err


def test_without_mkdocs_the_program_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    assert program.main(["--out", str(tmp_path)]) == 3
    assert "make docs" in capsys.readouterr().err
