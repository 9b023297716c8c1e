"""`bench` alone, `bench help`, mistyped words, and the examples under each command's help."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

import pytest

from bench import __version__
from bench.cli.arguments import Parser
from bench.cli.examples import EXAMPLES
from bench.cli.main import main, parser
from tests.terminals import Shown, on_terminal


def below(one: Parser) -> Iterator[Parser]:
    yield one
    for command in one.commands.values():
        yield from below(command)


EVERY = {each.prog: each for each in below(parser())}
WIDTHS = (40, 60, 80, 120)
END = "\f"  # after each help; no help has this character


@pytest.fixture(scope="module")
def helps() -> Mapping[tuple[str, int], Shown]:
    """Map a command and a width to its help there; all commands print on one terminal of each width."""

    def every_help() -> int:
        for program in EVERY:
            with pytest.raises(SystemExit) as ended:
                main([*program.split()[1:], "--help"])
            assert ended.value.code == 0, program
            print(end=END)
        return 0

    shown = {}
    for columns in WIDTHS:
        whole = on_terminal(every_help, columns)
        texts = whole.text.split(END)
        assert (whole.code, texts.pop()) == (0, "")
        for program, text in zip(EVERY, texts, strict=True):
            shown[program, columns] = Shown(text, whole.code)
    return shown


@pytest.mark.parametrize("group", [[], ["keys"], ["image"]])
def test_without_a_command_the_help_is_shown_and_a_script_notices(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(group) == 2
    shown = capsys.readouterr()
    assert shown.out == EVERY[" ".join(["bench", *group])].format_help()
    assert shown.err == ""


@pytest.mark.parametrize("program", EVERY)
def test_help_shows_what_the_option_shows(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = program.split()[1:]
    assert main(["help", *words]) == 0
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert (capsys.readouterr().out, ended.value.code) == (shown, 0)


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option])
    assert (capsys.readouterr().out, ended.value.code) == (f"bench {__version__}\n", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("comapre x.tar", 'bench: comapre: no such command\n  nearest: "compare"; '),
        ("help comapre", 'bench: comapre: no such command\n  nearest: "compare"; '),
        ("keys nwe", 'bench keys: nwe: no such command\n  nearest: "new"; '),
        ("help image bild", 'bench image: bild: no such command\n  nearest: "build"; '),
        ("plan m.json --gup h100", 'bench plan: --gup: no such option\n  nearest: "--gpu"; '),
        (
            "compare x --budget-us=9",
            'bench compare: --budget-us: no such option\n  nearest: "--budget-usd"; ',
        ),
        ("compare x --format tabel", 'bench compare: --format tabel: not a choice\n  nearest: "table"; '),
        ("rent skyplot m --gpu h100", 'bench rent: TOOL skyplot: not a choice\n  nearest: "skypilot"; '),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert shown.out == ""


@pytest.mark.parametrize("program", EVERY)
def test_every_help_ends_with_examples_that_can_be_parsed(
    program: str, helps: Mapping[tuple[str, int], Shown]
) -> None:
    examples = EXAMPLES[program]
    for columns in (40, 120):
        told = helps[program, columns].text.partition("\nexample")[2]
        lines = re.sub(r" \\\n +", " ", told).splitlines()  # as a shell reads them
        assert all(f"  {line}" in lines for line in examples)
    for line in examples:
        assert line.startswith(program) or program in ("bench", "bench completion")
        if "$(" not in line:
            assert parser().parse_args(shlex.split(line)[1:]).call is not None


def test_there_are_no_examples_of_commands_that_do_not_exist() -> None:
    assert EXAMPLES.keys() == EVERY.keys()


@pytest.mark.parametrize("program", EVERY)
def test_no_line_of_a_help_is_wider_than_the_terminal(
    program: str, helps: Mapping[tuple[str, int], Shown]
) -> None:
    """A word without a blank, such as a digest, is the only thing that may be."""
    for columns in (40, 60, 80):
        wide = [line for line in helps[program, columns].lines if len(line) > columns]
        assert [line for line in wide if len(line.removesuffix(" \\").split()) > 1] == []
