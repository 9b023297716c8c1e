"""`bench completion`: what may follow the typed words, and the script for bash in bash itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.base.gpu_catalogue import find_gpu_model, gpu_models
from bench.base.gpu_names import typed_names
from bench.cli.completion import FILES, completed
from bench.cli.completion_scripts import BASH, SCRIPTS
from bench.cli.main import main, parser
from tests.cli.test_help import EVERY


def after(*typed: str) -> list[str]:
    return [found.word for found in completed(parser(), typed)]


@pytest.mark.parametrize("program", EVERY)
def test_every_command_and_option_of_the_parser_is_completed(program: str) -> None:
    words = program.split()[1:]
    assert set(after(*words, "--")) == {
        name for action in EVERY[program]._actions for name in action.option_strings if name.startswith("--")
    }
    if EVERY[program].commands:
        assert after(*words, "") == list(EVERY[program].commands)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("comp", ["compare", "completion"]),
        ("keys tr", ["trust"]),
        ("help keys", ["keys"]),
        ("plan --gpu h10", ["h100", "h100-pcie", "h100-nvl"]),
        ("plan m.json --gpu=l40", ["--gpu=l40s", "--gpu=l40"]),
        ("predict m.json --gpu h200,8xb2", ["h200,8xb200"]),
        ("compare --estimate 8xb30", ["8xb300"]),
        ("compare --format t", ["table"]),
        ("compare --format = t", ["table"]),  # as bash divides it
        ("compare --rent spot --form", ["--format"]),
        ("plan --list-models llama-3.2", ["llama-3.2-1b", "llama-3.2-3b"]),
        ("check --skip matm", ["matmul"]),
        ("reproduce --published li", ["list"]),
        ("rent sk", ["skypilot"]),
        ("verify ", [FILES]),
        ("verify one.tar ", [FILES]),
        ("run ", [FILES]),
        ("run m.json ", []),
        ("run --budget ", []),
        ("export one.tar --to script ", [FILES]),
        ("nonsense ", []),
    ],
)
def test_what_follows(typed: str, words: list[str]) -> None:
    found = after(*typed.split(" "))
    assert [word for word in found if not word.startswith("litgpt")] == words


def test_a_card_has_a_name_that_people_type() -> None:
    names = typed_names()
    assert len(names) == len(gpu_models())
    for typed, name in names.items():
        found = find_gpu_model(typed)
        assert found is not None and found.name == name


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_printed_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]
    assert "bench completion --of" in SCRIPTS[shell]


def test_without_a_shell_the_shells_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "bench completion bash or zsh or fish" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bench comp", ["compare", "completion"]),
        ("bench plan --gpu h100-", ["h100-pcie", "h100-nvl"]),
        ("bench compare --format=ta", ["table"]),
        ("bench compare --format=", ["table", "json", "csv", "markdown"]),
        ("bench verify fi", ["first file.tar"]),
    ],
)
def test_bash_completes_with_the_script(line: str, words: list[str], tmp_path: Path) -> None:
    """Bash divides a line at blanks and at "=", and the script fills COMPREPLY."""
    command = tmp_path / "bin" / "bench"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m bench "$@"\n')
    command.chmod(0o755)
    (tmp_path / "first file.tar").touch()
    divided = line.replace("=", " = ").split(" ")
    divided = divided if not line.endswith("=") else divided[:-1]
    quoted = " ".join(f"'{word}'" for word in divided)
    typed = f"COMP_WORDS=({quoted}); COMP_CWORD={len(divided) - 1}"
    asked = f'{BASH}\n{typed}; _bench; printf "%s\\n" "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == words
