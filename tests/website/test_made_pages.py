"""Pages that are made: commands from the parser, fields from the schemas, the order from docs/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.cli.arguments import Parser
from bench.cli.examples import EXAMPLES
from bench.cli.main import parser
from website.commands import anchor, command_pages
from website.gallery import REPORTS
from website.navigation import navigation
from website.schemas import schema_page, schema_pages
from website.sources import ROOT, SCHEMAS, documents, place_of
from website.staging import folder_page

MADE = {
    "commands": ["commands/index.md", "commands/run.md"],
    "schemas": ["schemas/index.md"],
    "gallery": ["gallery.md"],
}


def below(one: Parser) -> Iterator[Parser]:
    for command in one.commands.values():
        yield command
        yield from below(command)


@pytest.mark.parametrize("command", [*below(parser())], ids=lambda each: each.prog)
def test_every_command_has_its_options_and_examples_in_the_reference(command: Parser) -> None:
    page = command_pages()[f"commands/{command.prog.split()[1]}.md"]
    assert f"# {command.prog}\n" in page
    assert all(f"\n{line}\n" in page for line in EXAMPLES[command.prog])
    for action in command._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                assert f'id="{anchor(command.prog, option)}"' in page
        if action.help and "%" not in action.help and not action.help.startswith("=="):
            assert action.help in unescape(page)


def test_the_list_of_commands_names_each_once_with_the_exit_codes() -> None:
    pages = command_pages()
    assert [pages["commands/index.md"].count(f"({name}.md)") for name in parser().commands] == [1] * len(
        parser().commands
    )
    assert "4  verification failed" in pages["commands/index.md"]


def test_the_reference_is_the_same_in_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = command_pages()
    monkeypatch.setenv("COLUMNS", "40")
    assert command_pages() == wide


def descriptions(schema: Any) -> Iterator[str]:
    """Yield every name and description in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        if isinstance(said := schema.get("description"), str):
            yield said
        for one in schema.values():
            yield from descriptions(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from descriptions(one)


@pytest.mark.parametrize("path", sorted((ROOT / SCHEMAS).glob("*.json")), ids=lambda path: path.stem)
def test_every_field_of_a_schema_is_on_its_page_and_the_file_beside_it(path: Path) -> None:
    pages = schema_pages()
    page, schema = pages[f"schemas/{path.stem}.md"], json.loads(path.read_text())
    assert pages[f"schemas/{path.stem}.json"] == path.read_text()
    said = list(descriptions(schema))
    assert len(said) > 15
    assert [one for one in said if escape(one) not in page] == []
    assert f"({path.stem}.md)" in pages["schemas/index.md"]


def test_a_schema_is_told_in_words_and_nothing_of_it_is_lost() -> None:
    field = {
        "type": "integer",
        "minimum": 1,
        "maximum": 8,
        "default": 2,
        "examples": [4],
        "multipleOf": 2,
        "description": "<b>",
    }
    numbers = {"type": "array", "minItems": 1, "items": {"type": "number"}}
    schema = {
        "title": "one", "required": ["n"],
        "properties": {"n": field, "k": {"enum": ["a", 1]}, "r": {"$ref": "#/$defs/other"}},
        "additionalProperties": {"type": ["string", "null"]},
        "$defs": {"other": {"anyOf": [{"const": 1}, numbers]}},
    }  # fmt: skip
    page = schema_page("one", schema)
    for said in (
        "<code>n</code> integer at least 1 at most 8 <em>required</em>", "default: <code>2</code>",
        "such as <code>4</code>", "multipleOf: <code>2</code>", "&lt;b&gt;",
        "one of <code>&quot;a&quot;</code>, <code>1</code>",
        '<a href="#other">other</a>', "<em>any other name</em> string or null", "## other", "any of these",
        "<li><code>1</code></li>", "array of 1 items or more", "each: number",
    ):  # fmt: skip
        assert said in page


def test_pages_are_in_the_order_of_the_tables() -> None:
    sections = {title: entries for section in navigation(MADE) for title, entries in section.items()}
    assert list(sections) == [
        "Home",
        "Documentation",
        "Tasks",
        "Reference",
        "Results and decisions",
        "Project",
    ]
    assert (sections["Home"], sections["Documentation"]) == ("index.md", "contents.md")
    assert sections["Tasks"][0] == "running.md"
    assert sections["Reference"][-2:] == [{"Commands": MADE["commands"]}, {"Schemas": MADE["schemas"]}]
    (decisions,) = (
        one["Decisions"]
        for one in sections["Results and decisions"]
        if isinstance(one, dict) and "Decisions" in one
    )
    assert decisions[0] == "adr/index.md"
    assert {"1. Decisions are recorded": "adr/0001-record-decisions.md"} in decisions


def test_every_document_is_in_the_navigation_once() -> None:
    def pages(entries: Any) -> Iterator[str]:
        for one in entries if isinstance(entries, list) else entries.values():
            yield from [one] if isinstance(one, str) else pages(one)

    listed = list(pages(navigation(MADE)))
    assert len(listed) == len(set(listed))
    assert {place_of(source) for source in documents()} <= set(listed)


def test_a_page_that_no_table_lists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docs/guides").mkdir(parents=True)
    (tmp_path / "docs/README.md").write_text("# Docs\n\n## Tasks\n\n| a | [a](a.md) |\n")
    for name in ("a", "b", "guides/c"):
        (tmp_path / f"docs/{name}.md").write_text("# A\n")
    with pytest.raises(BadInput, match=r"docs/b.md, docs/guides/c.md"):
        navigation(MADE, tmp_path)


def test_a_folder_lists_decisions_by_title_pictures_and_files() -> None:
    assert "- [1. Decisions are recorded](0001-record-decisions.md)" in folder_page("docs/adr")
    assert "![report.png](report.png)" in folder_page("docs/pictures")
    assert "- [where-time-goes-h200/vit-l.txt](where-time-goes-h200/vit-l.txt)" in folder_page(
        "docs/evidence"
    )


def test_reports_of_the_gallery_are_of_bundles_in_the_repository() -> None:
    for report in REPORTS:
        assert all((ROOT / word).is_dir() for word in report.words if word.startswith("results/"))
        assert parser().parse_args(report.command.split()[1:]).call is not None
