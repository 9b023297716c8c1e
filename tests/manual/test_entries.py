"""Everything that bench names has an explanation: codes, verdicts, checks, methods, fields, columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import get_args, get_type_hints

import pytest

from bench.base.errors import BadInput
from bench.base.shipped_data import read_data, repository
from bench.manual.entries import KINDS, SCHEMAS, TABLES, ManualEntry, document_sections, entries, plain_name
from bench.manual.lookup import explanation, kind_of, names_of
from bench.manual.markdown import plain, sections
from bench.node_check.all_checks import known_checks
from bench.node_check.judging import DEPTHS
from bench.records.marks import MarkKind
from bench.records.trial import Outcome
from bench.report.text import machine_rows, run_table
from bench.training.methods import known_methods
from bench.training.models import known_models
from bench.training.models.zoo import zoo_names
from bench.training.objectives import known_objectives
from bench.training.optimizers import OPTIMIZERS
from bench.training.schedules import SCHEDULES

DOCS = repository() / "docs"


def columns() -> Iterator[str]:
    """Yield the names and the heads of all columns that --columns can name."""
    for column in run_table.COLUMNS:
        if not column.fixed:
            yield from (column.name, column.head)
    for name in machine_rows.COLUMN_NAMES:
        yield from (name, machine_rows.HEADERS[name])


NAMED: Mapping[str, Iterable[str]] = {
    "exit code": map(str, range(6)),
    "verdict": ("pass", "warn", "fail", "not-run", "not possible here"),
    "check": known_checks(),
    "mark": get_args(MarkKind),
    "outcome": [get_args(get_type_hints(kind)["kind"])[0] for kind in get_args(Outcome)],
    "method": known_methods(),
    "value of methods": ("guided", "naive", "free-lunch", "exhaustive"),
    "model": (*known_models(), *zoo_names()),
    "objective": known_objectives(),
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "column": columns(),
    "level": (*DEPTHS, "self", "operator"),
    "field": (
        "schema",
        "models.recipe.steps",
        "recipe.steps",
        "/models/0/recipe/lora/rank",
        "levels.minutes",
    ),
    "term": ("micro-batch", "MFU", "lemon"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_every_name_of_a_kind_is_explained(kind: str) -> None:
    for name in NAMED[kind]:
        found = explanation(name, entries())
        assert kind in {one.kind for one in found.entries}, name
        for one in found.entries:
            assert any(text for _, text in one.facts) or one.text or one.kind == "section"


def test_every_field_of_the_schemas_is_explained() -> None:
    for name in SCHEMAS:
        for field in read_data(f"schema/{name}.json")["properties"]:
            assert "field" in {one.kind for one in explanation(field, entries()).entries}


def test_every_table_of_the_manual_is_in_the_documents() -> None:
    """A heading that is renamed would silently empty the manual."""
    there = {(one.page, one.heading) for one in document_sections()}
    wanted = {(page, heading) for page, heading in TABLES if heading}
    assert wanted <= there
    assert {one.kind for one in entries()} == {*KINDS}


def test_every_heading_is_found() -> None:
    for section in document_sections():
        found = explanation(section.heading, entries())
        assert section.address in (*(one.address for one in found.entries), *found.see_also), section


@pytest.mark.parametrize(
    ("word", "kinds"),
    [
        ("exit code 3", {"exit code"}),
        ("column memory", {"column"}),
        ("check memory", {"check"}),
        ("OF LIMIT", {"column"}),
        ("not_run", {"verdict"}),
        ("The Floor", {"field", "column", "term", "section"}),
    ],
)
def test_case_and_joints_do_not_matter_and_a_kind_may_stand_before(word: str, kinds: set[str]) -> None:
    assert {one.kind for one in explanation(word, entries()).entries} == kinds


def test_the_general_meaning_of_an_exit_code_is_first() -> None:
    assert explanation("3", entries()).entries[0].address == "docs/json.md#exit-codes"


def test_sections_of_results_are_named_and_not_printed() -> None:
    found = explanation("memory", entries())
    assert "docs/accuracy.md#memory" in found.see_also
    assert all("accuracy" not in one.address for one in found.entries)


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("half-wieghts", 'nearest: "half-weights"'),
        ("of limt", 'nearest: "of limit"'),
        ("qqqqqq", "kinds: field"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest(word: str, advice: str) -> None:
    with pytest.raises(BadInput) as caught:
        explanation(word, entries())
    assert (caught.value.advice or "").startswith(advice)


@pytest.mark.parametrize(
    ("word", "kind"), [("methods", "method"), ("exit codes", "exit code"), ("tf32", None)]
)
def test_a_kind_is_known_by_its_name(word: str, kind: str | None) -> None:
    assert kind_of(word) == kind
    assert kind is None or names_of(kind, entries())


def test_a_row_of_several_names_lists_each_of_them() -> None:
    assert {*names_of("method", entries())} == {*known_methods()}
    assert {"pass", "warn", "fail", "not-run"} <= {*names_of("verdict", entries())}


def addresses() -> Iterator[tuple[str, ManualEntry]]:
    for one in entries():
        yield one.address, one


def test_every_address_is_a_heading_of_a_page() -> None:
    there = {one.address for one in document_sections()}
    assert {address for address, _ in addresses()} <= there


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
@pytest.mark.parametrize("room", [40, 80, 120])
def test_every_page_fits_the_terminal(page: str, room: int) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for section in sections(page, text):
        shown = plain(section.text, room)
        wide = [line for line in shown.splitlines() if len(line) > room and " " in line.strip()]
        assert not wide, (section.heading, wide[:3])


def test_names_are_compared_in_one_form() -> None:
    assert {plain_name(name) for name in ("Out-of-memory", "`out of memory`", "OUT_OF  MEMORY")} == {
        "out of memory"
    }
