"""`bench explain`: the manual's answer to a word, on a terminal and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cli.completion import completed
from bench.cli.main import main, parser
from bench.manual import entries as manual
from bench.manual.entries import KINDS
from tests.terminals import on_terminal

WORDS = (
    "3",
    "exit code 3",
    "floor",
    "half-weights",
    "recipe.lora",
    "xid",
    "SLOWED",
    "memory",
    "gradients",
    "",
)


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("word", WORDS)
def test_no_line_is_wider_than_the_terminal(word: str, columns: int) -> None:
    shown = on_terminal(["explain", *word.split()], columns)
    assert shown.code == 0
    long = [line for line in shown.lines if len(line) > columns and " " in line.strip()]
    assert not long


def test_long_output_goes_through_the_pager() -> None:
    shown = on_terminal(["explain", "floor"], 80, {"BENCH_PAGER": "sed s/^/paged:/"})
    assert shown.lines[0].startswith("paged:floor (field, docs/manifest.md)")


def test_into_a_pipe_a_fact_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "exit", "code", "4"]) == 0
    assert "meaning  verification failed\n" in capsys.readouterr().out


def test_a_field_shows_what_is_allowed_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "timing.target_percent"]) == 0
    shown = capsys.readouterr().out
    assert "allowed   a number more than 0 to 50\n" in shown
    assert "default   1\n" in shown


def test_a_kind_lists_its_names_and_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "check"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("check: present, alike, ")
    assert "one question about a node's health" in shown


def test_without_a_word_every_kind_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    shown = capsys.readouterr().out
    assert [line.partition(":")[0] for line in shown.split("\n\n")] == [*KINDS]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("half-wieghts", '"half-wieghts" is not in the manual\n  nearest: "half-weights"'),
        ("reproduce", "it is a command: bench help reproduce"),
        ("\x1b[2J", "kinds: field, "),
    ],
)
def test_an_unknown_word_is_refused_with_advice(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", word]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "\x1b" not in shown.err


def test_without_documents_that_is_the_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image has no documents; it has the schemas."""
    monkeypatch.setattr(manual, "repository", lambda: tmp_path)
    manual.entries.cache_clear()
    try:
        assert main(["explain", "lemon"]) == 2
        assert "no documents" in capsys.readouterr().err
        assert main(["explain", "recipe.steps"]) == 0
    finally:
        manual.entries.cache_clear()


def test_the_document_has_entries_or_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "of limit", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (entry,) = document["entries"]
    assert document["schema"] == "bench/explanation/v1"
    assert entry["kind"] == "column"
    assert entry["names"] == ["of limit", "limit"]
    assert {fact["head"] for fact in entry["facts"]} == {"`--columns`", "meaning"}
    assert document["see_also"] == [
        "docs/running.md#what-a-pass-multiplies",
        "docs/running.md#gradients",
    ]
    assert main(["explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["names"].keys() == {*KINDS}


def test_words_are_completed_with_their_kinds() -> None:
    assert [*completed(parser(), ["explain", "half"])] == [("half-weights", "method")]
    assert ("models.recipe.steps", "field") in completed(parser(), ["explain", "models.recipe.st"])
    assert ("SLOWED", "mark") in completed(parser(), ["explain", "SL"])
