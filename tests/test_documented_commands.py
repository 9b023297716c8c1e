"""Every command that a document tells its reader to type is one that can be typed.

Each is typed by a test: tests/documented_commands.py knows by which.
Here each is parsed: those of `bench` by its own parser, all of them by the shell. The site's build runs the
commands of its gallery. Lines of pip are installed by tests/test_pip_lines.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from bench.cli.arguments import Parser
from bench.cli.main import parser
from tests.documented_commands import SYNOPSIS, DocumentedCommand, commands, counted, printed
from website.sources import ROOT, documents, fences

COMMANDS = [each for lines in commands().values() for each in lines]
OURS = [each for each in COMMANDS if each.is_of_bench]


@pytest.mark.parametrize("command", OURS, ids=str)
def test_commands_of_bench_are_parsed(command: DocumentedCommand) -> None:
    for part in re.split(r" && | \| |; ", command.line):
        words = shlex.split(re.sub(r" >>? ?\S+", "", part))
        assert words[0] == "bench"
        assert parser().parse_args(words[1:]).call is not None


def test_the_shell_reads_every_line() -> None:
    script = "\n".join(each.line for each in COMMANDS)
    read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_synopses_name_only_options_that_exist() -> None:
    seen = 0
    for document in documents():
        for _, body in fences((ROOT / document).read_text(encoding="utf-8")):
            for whole in re.split(r"\n(?=\S)", body):
                words = whole.split()
                if len(words) > 2 and words[0] == "bench" and SYNOPSIS.search(whole):
                    one = known(words[1:])
                    options = set(re.findall(r"--[a-z][a-z-]*", whole))
                    assert options <= set(one._option_string_actions), document
                    seen += 1
    assert seen >= 6


def known(words: list[str]) -> Parser:
    found = parser()
    for word in words:
        if word not in found.commands:
            break
        found = found.commands[word]
    return found


def test_targets_of_make_exist() -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = [each for each in COMMANDS if each.line.startswith("make ")]
    assert len(named) > 8
    assert [str(each) for each in named if each.line.split()[1] not in targets] == []


def test_a_line_that_a_test_names_is_typed_by_it() -> None:
    (command,) = [each for each in COMMANDS if each.line == "sha256sum --check SHA256SUMS"]
    assert command.typed_by == "tests/release/test_release.py"
    with pytest.raises(AssertionError, match="no page prints"):
        printed(f"{command.line}2")


def test_the_document_of_tests_says_how_many_lines_are_typed() -> None:
    head, *by_test = counted().splitlines()
    assert head == f"all {len(COMMANDS)} lines are typed"
    assert head.replace("lines ", "") in (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    assert sum(int(each.split()[0]) for each in by_test) == len(COMMANDS)


def test_tests_that_type_commands_exist() -> None:
    typing = {each.typed_by for each in COMMANDS if each.typed_by}
    assert len(typing) > 8
    assert [path for path in typing if not (ROOT / path).exists()] == []
