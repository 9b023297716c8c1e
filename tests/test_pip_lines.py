"""Every pip line that is documented or printed can be installed as it stands."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.distribution import DISTRIBUTION
from bench.base.pip_commands import BUILD_TOOLS, BUILT_WITH_TORCH, environment_line, install_lines
from bench.node_check.recompute_any import recompute, results_of
from bench.records.trial import NodeFacts
from bench.report.read_bundles import verify_one
from bench.report.reproduce.verdicts import pip_lines

ROOT = Path(__file__).parents[1]
DECIDED = ROOT / "results/hour-h200/decided.tar"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ON_AN_INDEX = {"bcrypt", "pillow", *BUILD_TOOLS}  # packages that a line names without a version
OPTIONS_WITH_VALUE = {"--extra-index-url", "--find-links", "-r"}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "ansible").rglob("*.md")])
SOURCES = sorted((ROOT / "bench").rglob("*.py"))
LINE = re.compile(r"\bpip install ((?:'[^']*'|[^\s`'\"#|;,()&]+)(?: +(?:'[^']*'|[^\s`'\"#|;,()&]+))*)")


def arguments(line: str) -> list[str]:
    return shlex.split(line, comments=True)[2:]


def fault(words: list[str], earlier: list[str]) -> str | None:
    """Say why pip would refuse these arguments after the `earlier` lines; None if it would not."""
    packages, value = [], False
    for word in words:
        if not value and not word.startswith("-"):
            packages.append(word)
        value = not value and word in OPTIONS_WITH_VALUE
    for package in packages:
        name, _, version = package.partition("==")
        base, _, extras = name.partition("[")
        if base in (".", DISTRIBUTION):
            unknown = {e for e in extras.rstrip("]").split(",") if e} - PROJECT[
                "optional-dependencies"
            ].keys()
            if unknown or (base == DISTRIBUTION and not extras):
                return f"{package}: {unknown or 'on no index'}"
            continue
        if not version and name not in ON_AN_INDEX:
            return f"{package} is neither pinned nor known"
        if name in BUILT_WITH_TORCH:
            before = " ".join(earlier)
            if "--no-build-isolation" not in words or not set(BUILD_TOOLS) <= set(before.split()):
                return f"{package} is built with torch and {', '.join(BUILD_TOOLS)}"
        build = version.partition("+")[2]
        if build and f"https://download.pytorch.org/whl/{build}" not in words:
            return f"{package} is on PyTorch's own index alone"
    return None


def documented() -> Iterator[tuple[Path, list[str]]]:
    """Yield the pip lines of each block of code, and those inside of sentences one by one."""
    for path in DOCUMENTS:
        for number, part in enumerate(path.read_text().split("```")):
            found = [f"pip install {match[1].strip()}" for match in LINE.finditer(part)]
            yield from [(path, found)] if number % 2 else ((path, [line]) for line in found)


def require_installable(lines: list[str]) -> None:
    earlier: list[str] = []
    for line in lines:
        if line.startswith("pip install "):
            assert fault(arguments(line), earlier) is None, line
        earlier.append(line)


def test_every_documented_line_can_be_installed() -> None:
    blocks = [(path, lines) for path, lines in documented() if lines]
    assert len(blocks) > 10
    for _, lines in blocks:
        require_installable(lines)


@pytest.mark.parametrize(
    ("line", "earlier"),
    [
        ("pip install causal-conv1d==1.7.0", []),
        ("pip install torch==2.11.0 causal-conv1d==1.7.0", []),
        ("pip install --no-build-isolation causal-conv1d==1.7.0", []),
        ("pip install torch==2.11.0+cu130", []),
        ("pip install '.[runn]'", []),
        ("pip install bench", []),
        (f"pip install {DISTRIBUTION}", []),
    ],
)
def test_what_pip_would_refuse_is_found(line: str, earlier: list[str]) -> None:
    assert fault(arguments(line), earlier)


def test_every_line_in_a_message_of_bench_can_be_installed() -> None:
    lines = [
        (path, match[1])
        for path in SOURCES
        for match in LINE.finditer(path.read_text())
        if "{" not in match[1] and "requirements.txt" not in match[1] and "PATH/TO" not in match[1]
    ]
    assert lines
    for path, words in lines:
        assert fault(shlex.split(words), []) is None, (path, words)


def node_of(path: Path) -> NodeFacts:
    return results_of(verify_one(path, None, recompute)).node


def test_the_lines_of_the_guide_are_those_that_reproduce_prints() -> None:
    there = node_of(DECIDED)
    lines = list(pip_lines(replace(there, python="3.11.2"), replace(there, packages=dict(there.packages))))
    assert lines == []  # equal packages need no other Python
    lines = list(pip_lines(replace(there, python="3.11.2", packages={}), there))
    assert "\n".join(lines) in (ROOT / "docs/guides/reproduce-a-result.md").read_text()


def test_lines_of_every_committed_bundle_can_be_installed() -> None:
    paths = sorted((ROOT / "results").glob("*/*.tar"))
    nodes = [node_of(path) for path in paths if "node-check" not in str(path)]
    for there in {str(node.packages): node for node in nodes}.values():
        here = replace(there, packages={"torch": "2.9.0", "left": "1.0"})
        lines = list(pip_lines(here, there))
        require_installable(lines)
        assert lines[-1] == "pip uninstall --yes left"
        other = list(pip_lines(replace(here, python="3.9.1"), there))
        require_installable(other)
        assert other[0] == "python3.12 -m venv .venv && . .venv/bin/activate"


def test_what_is_built_with_torch_comes_after_torch_and_the_build_tools() -> None:
    packages = {"causal-conv1d": "1.7.0", "torch": "2.11.0+cu130", "numpy": "2.5.2"}
    assert list(install_lines(packages)) == [
        "pip install --extra-index-url https://download.pytorch.org/whl/cu130 numpy==2.5.2"
        " torch==2.11.0+cu130 ninja packaging setuptools wheel",
        "pip install --no-build-isolation causal-conv1d==1.7.0",
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
