"""Elements escape by construction: only Markup is inserted as it is."""

from __future__ import annotations

import pytest

from bench.report.markup import Markup, document, el, fragment, items

EVIL = "</td><script>alert(1)</script>\"'&"


def test_children_and_attributes_are_escaped() -> None:
    escaped = "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;"
    assert el("td", EVIL, data_head=EVIL) == f'<td data-head="{escaped}">{escaped}</td>'
    assert items([EVIL]) == f"<ul><li>{escaped}</li></ul>"
    assert fragment(EVIL, el("b", "x")) == f"{escaped}<b>x</b>"
    assert f"<title>{escaped}</title>" in document(EVIL)


def test_markup_that_is_joined_to_a_string_is_a_string_and_is_escaped() -> None:
    assert el("p", el("b", "x") + EVIL) == el("p", "<b>x</b>" + EVIL)
    assert "<b>" not in el("p", el("b", "x") + EVIL)


@pytest.mark.parametrize(
    ("element", "text"),
    [
        (el("td", ""), "<td></td>"),
        (el("span", id="shown"), '<span id="shown"></span>'),  # HTML has no <span/>
        (el("line", x1=1.25, x2=3), '<line x1="1.2" x2="3"/>'),
        (el("circle", el("title", "a"), r=2.0), '<circle r="2"><title>a</title></circle>'),
        (el("tr", class_=None, data_of=0), '<tr data-of="0"></tr>'),
        (el("p", "bell\a"), "<p>bell\\x07</p>"),
    ],
)
def test_forms_of_elements(element: Markup, text: str) -> None:
    assert element == text
