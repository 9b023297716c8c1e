"""The commands that tell people to install a part of this project."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.base.distribution import DISTRIBUTION, pip_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READ = ("bench/**/*.py", "docker/*.py", "ansible/**/*.md", "ansible/**/*.yml", "ansible/**/*.txt",
        "docs/**/*.md", "manifests/*", "*.md")  # fmt: skip
# A requirement with extras, as `.[run]`, `bench[run]` or `{DISTRIBUTION}[{extra}]`, after pip install.
COMMAND = re.compile(r"pip install (?:-e |--editable |--quiet )*['\"]?([\w.-]+)(?:\[([\w,]+)\])?")
CALL = re.compile(r"pip_install\([\"'](\w+)[\"']\)")


def texts() -> Iterator[tuple[Path, str]]:
    for pattern in READ:
        for path in sorted(ROOT.glob(pattern)):
            yield path, path.read_text()


def test_pip_knows_the_project_by_this_name() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert pip_install("push") == "pip install 'bench-appliance[push]'"


def test_no_command_installs_the_other_project_named_bench() -> None:
    found = {
        str(path): name for path, text in texts() for name, _ in COMMAND.findall(text) if name == "bench"
    }
    assert found == {}


@pytest.mark.parametrize("pattern", [COMMAND, CALL])
def test_every_extra_that_a_command_names_exists(pattern: re.Pattern[str]) -> None:
    named = {
        extra
        for _, text in texts()
        for match in pattern.finditer(text)
        if match[1] in (".", DISTRIBUTION) or pattern is CALL
        for extra in (match[match.re.groups] or "").split(",")
        if extra
    }
    assert len(named) >= 4, "the pattern finds the commands"
    assert named <= set(PROJECT["optional-dependencies"])
