"""Markdown of the documents as plain text, and its sections, tables and links."""

from __future__ import annotations

import pytest

from bench.manual.markdown import inline, links, plain, sections, tables

PAGE = """# One `page`

Words with a [link](other.md#there).

```
# no heading
| no | table |
```

## Second *part*

| name | what \\| else |
|---|---|
| `a`, b | **bold** and a longer text that is wrapped |
"""


def test_a_page_has_sections_with_addresses() -> None:
    first, second = sections("some.md", PAGE)
    assert (first.level, first.address) == (1, "docs/some.md")
    assert "# no heading" in first.text
    assert second.address == "docs/some.md#second-part"


def test_a_table_in_code_is_none_and_a_pipe_may_be_escaped() -> None:
    first, second = sections("some.md", PAGE)
    assert not [*tables(first.text)]
    (found,) = tables(second.text)
    assert found.heads == ("name", "what | else")
    assert found.rows == (("`a`, b", "**bold** and a longer text that is wrapped"),)


def test_links_are_targets_each_once() -> None:
    assert links("[a](x.md) ![p](p.svg) [b](y.md#z) [a](x.md)") == ["x.md", "y.md#z"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a `zero-*` b `fsdp-*`", "a zero-* b fsdp-*"),
        ("**very** *much*", "very much"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("[`trial_minutes`](m.md)", "trial_minutes"),
        ("![a plot](p.svg)", "(picture: a plot)"),
    ],
)
def test_inline_signs_are_taken_away(text: str, shown: str) -> None:
    assert inline(text) == shown


def test_blocks_have_one_empty_line_between_them_and_lists_hang() -> None:
    text = "Some words here.\n\n- one item that is long\n  and goes on\n- two\n\n1. first\n\n## Head\n\nend"
    assert plain(text, 20).splitlines() == [
        "Some words here.",
        "",
        "- one item that is",
        "  long and goes on",
        "- two",
        "",
        "1. first",
        "",
        "Head",
        "----",
        "",
        "end",
    ]


def test_code_keeps_its_lines_and_a_long_one_goes_on_indented() -> None:
    assert plain("```\nshort\n  a longer line of code\n```", 22).splitlines() == [
        "    short",
        "      a longer line of",
        "          code",
    ]


def test_without_a_width_every_paragraph_is_one_line() -> None:
    words = "word " * 50
    assert plain(words, None) == words.strip()
