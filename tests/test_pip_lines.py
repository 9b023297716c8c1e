"""Every pip line that is documented or printed installs as it stands.

The lines are run in fresh environments. Their packages are stand-ins with the requirements of the real ones
(tests/pip_lines). tests/e2e/test_pip_lines.py runs more of them, and installs real packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.pip_commands import environment_line, install_lines
from tests.pip_lines.bundles import reproduced, stacks
from tests.pip_lines.machine import fault
from tests.pip_lines.package_facts import read_facts
from tests.pip_lines.printed_lines import (
    NAMES_A_PACKAGE,
    OF_A_RELEASE,
    PIP,
    PRODUCERS,
    ROOT,
    PrintedLines,
    documents,
    found,
    in_document,
    in_sentences,
    modules,
    texts_of_code,
)
from tests.pip_lines.stand_in_index import StandInIndex, serving
from tests.release.test_release import INSTALL

GUIDE = ROOT / "docs/guides/reproduce-a-result.md"
KERNELS_ALONE = replace(stacks()[0], packages={"torch": "2.11.0", "causal-conv1d": "1.7.0"})
KERNELS = max(stacks(), key=lambda node: len(node.packages))  # the stack with the most that is built


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInIndex]:
    with serving(read_facts(), tmp_path_factory.mktemp("index")) as one:
        yield one


@pytest.mark.parametrize(
    "lines",
    [pytest.param(each, id=each.where, marks=() if each.is_quick else pytest.mark.e2e) for each in found()],
)
def test_lines_of_documents_and_messages_install(
    lines: PrintedLines, index: StandInIndex, tmp_path: Path
) -> None:
    assert fault(lines, index, tmp_path / "machine") is None


def test_the_lines_about_releases_are_those_that_the_test_of_a_release_runs() -> None:
    documented = in_document(OF_A_RELEASE.name, OF_A_RELEASE.read_text())
    run = INSTALL.format(lock="bench_appliance-VERSION.operator.lock")
    assert [lines.commands for lines in documented] == [(run,)]


def test_every_pip_line_in_a_document_is_one_that_is_run() -> None:
    for path in documents():
        text = path.read_text()
        run = [command for lines in in_document(path.name, text) for command in lines.commands]
        for line in text.splitlines():
            if NAMES_A_PACKAGE.search(line):
                assert any(command in line for command in run), f"{path}: write it as code: {line}"


def test_every_pip_line_in_code_is_one_that_is_run() -> None:
    """A message is run as it stands. What code computes comes from few modules, whose lines are run below."""
    computing = set()
    for name, path in modules():
        for text in texts_of_code(path):
            if PIP.search(text) and (name in PRODUCERS or not list(in_sentences(name, text, True))):
                computing.add(name)
    assert computing == PRODUCERS


def test_the_lines_of_the_guide_are_those_that_reproduce_prints() -> None:
    lines = reproduced(KERNELS, {}, "3.11")
    assert "\n".join(lines.commands) in GUIDE.read_text()
    assert reproduced(KERNELS, KERNELS.packages, "3.11").commands == ()  # equal packages need no other Python


def test_lines_of_reproduce_make_the_packages_equal(index: StandInIndex, tmp_path: Path) -> None:
    """The kernels are installed in the right versions already, but were built with another torch."""
    lines = reproduced(KERNELS, {**KERNELS.packages, "torch": "2.9.0", "left": "1.0"}, "3.12")
    assert fault(lines, index, tmp_path / "machine") is None


@pytest.mark.e2e
def test_a_kernel_that_pip_built_with_another_torch_is_built_again(
    index: StandInIndex, tmp_path: Path
) -> None:
    earlier = (
        "pip install torch==2.13.0 ninja packaging setuptools wheel",
        "pip install --no-build-isolation causal-conv1d==1.7.0",
        "pip uninstall --yes causal-conv1d",
    )
    lines = reproduced(KERNELS_ALONE, {}, "3.12")
    assert fault(replace(lines, commands=(*earlier, *lines.commands)), index, tmp_path / "machine") is None
    careless = (*earlier, *(command.replace(" --no-cache-dir", "") for command in lines.commands))
    assert fault(replace(lines, commands=careless), index, tmp_path / "careless")


@pytest.mark.parametrize(
    ("python", "command", "reason"),
    [
        ("3.12", "pip install --no-build-isolation causal-conv1d==1.7.0", "No module named"),
        ("3.11", "pip install numpy==2.5.2", "require a different python version: 2.5.2"),
        ("3.12", "pip install torch==2.11.0+cu130", "No matching distribution"),
        ("3.12", "pip install '.[runn]'", "does not provide the extra 'runn'"),
        ("3.12", "pip install bench-appliance", "No matching distribution"),
        ("3.12", "python3.7 -m venv .venv", "not found"),
        pytest.param(
            "3.12",
            "pip install torch==2.11.0 causal-conv1d==1.7.0",
            "built with torch",
            marks=pytest.mark.e2e,
        ),
    ],
)
def test_lines_that_do_not_install_are_found(
    python: str, command: str, reason: str, index: StandInIndex, tmp_path: Path
) -> None:
    found = fault(PrintedLines("a mistake", (command,), python=python), index, tmp_path / "machine")
    assert found is not None
    assert reason in found


def test_what_is_built_with_torch_comes_after_torch_and_the_build_tools() -> None:
    packages = {"causal-conv1d": "1.7.0", "torch": "2.11.0+cu130", "numpy": "2.5.2"}
    assert list(install_lines(packages)) == [
        "pip install --extra-index-url https://download.pytorch.org/whl/cu130 numpy==2.5.2"
        " torch==2.11.0+cu130 ninja packaging setuptools wheel",
        "pip install --no-build-isolation --no-cache-dir causal-conv1d==1.7.0",
    ]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("--index-url=http://evil/", "1"),
        ("a", "1; rm -rf /"),
        ("a b", "1"),
        ("a", "-1"),
        ("a\nb", "1"),
        ("", "1"),
    ],
)
def test_no_word_of_a_bundle_becomes_an_option(name: str, version: str) -> None:
    assert list(install_lines({name: version})) == []


@pytest.mark.parametrize(
    ("python", "line"), [("3.12.3", "python3.12"), ("3.13.0rc1", "python3.13"), ("x; y", None)]
)
def test_an_environment_has_the_python_that_was_measured_with(python: str, line: str | None) -> None:
    found = environment_line(python)
    assert found == (f"{line} -m venv .venv && . .venv/bin/activate" if line else None)
