"""A few cases of each kind of `make fuzz`: commands given what a stranger signed, wrote or answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz_commands import Commands, Defect, call, require_harmless

KINDS, CASES = 15, 4


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return Commands(tmp_path_factory.mktemp("commands"))


def test_every_kind_has_its_cases(commands: Commands) -> None:
    assert len(commands.kinds) == KINDS


@pytest.mark.parametrize("number", range(KINDS * CASES))
def test_what_a_stranger_made_ends_no_command_by_a_defect(commands: Commands, number: int) -> None:
    assert commands.attempt(number, seed=0)


@pytest.mark.parametrize("text", ["<x-stranger>", "\x1b[2J", "\u202e"])
def test_the_fuzzer_notices_what_a_page_must_not_hold(text: str) -> None:
    require_harmless("<p>a page</p>\n", "page.html")
    with pytest.raises(Defect, match=r"page\.html holds"):
        require_harmless(f"<p>{text}</p>", "page.html")


def test_the_fuzzer_notices_a_defect(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails by an exception of its own is a case that went wrong."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("of no use")

    monkeypatch.setattr("bench.bundle.verify._check_names", broken)
    with pytest.raises(Defect, match="ZeroDivisionError: of no use"):
        commands.attempt(0, seed=0)


def test_a_command_that_prints_control_characters_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.cli.verify.one_line", lambda text: f"{text}\x1b")
    monkeypatch.setattr("bench.cli.stdio._escaped", lambda text: text)  # else stdout escapes it
    bundle = Path(__file__).parents[1] / "results" / "proof-h200" / "pythia-160m.tar"
    with pytest.raises(Defect, match="prints"):
        call("verify", bundle)
