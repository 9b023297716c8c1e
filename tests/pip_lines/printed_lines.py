"""Every pip line that people read: in documents, in messages, and what commands print or write.

`found` reads the files. It cannot read lines that code assembles: `PRODUCERS` names the modules that do, and
tests run what these print and write for bundles.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bench.base.distribution import pip_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"  # the Python of the machine on which lines are run
PIP = re.compile(r"\bpip (?:un)?install\b")
# A line, which ends where a sentence or a string around it does. It names a package, or a file of them.
LINE = re.compile(
    r"(?:\bpython3? -m |\buv )?\bpip (?:un)?install(?: +(?:'[^']*'|\"[^\"]*\"|[^\s`'\"#|;,()&]+))+"
)
INLINE = re.compile(r"`([^`\n]+)`")
ENVIRONMENT = re.compile(r"^(?:python[\d.]* -m venv|\. |source )")
NAMES_A_PACKAGE = re.compile(r"\bpip (?:un)?install(?: +-[^\s`]+)* +[^-\s`]")
# Its lines name the files of a release; tests/release runs them with a release that it makes.
OF_A_RELEASE = ROOT / "docs/release.md"
# Files of texts beside documents and code: their comments have lines, too.
TEXTS = (
    "ansible/**/*.txt",
    "ansible/**/*.yml",
    "manifests/*",
    "docker/*.in",
    "docker/*.def",
    "bench/data/**/*.json",
)
# Modules that assemble lines, which are run as `bench reproduce`, `bench export` and `bench rent` give them.
PRODUCERS = {
    "bench/base/distribution.py",
    "bench/base/pip_commands.py",
    "bench/export/__init__.py",
    "bench/push/rent/rental.py",
    "bench/report/reproduce/verdicts.py",
}


@dataclass(frozen=True, slots=True)
class PrintedLines:
    """Lines that somebody runs one after the other, in a folder with `files`."""

    where: str
    commands: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    python: str = HERE  # that the machine has
    installed: bool = False  # whether bench is installed already
    before: Mapping[str, str] = field(default_factory=dict)  # versions of packages that are there
    after: Mapping[str, str] = field(
        default_factory=dict
    )  # versions that must be there when the lines have run

    @property
    def is_quick(self) -> bool:
        """Whether the lines install no torch, which brings dozens of other packages."""
        return not any(re.search(r"torch|\b(?:run|zero|lora)\b", command) for command in self.commands)

    def __str__(self) -> str:
        return "\n".join([f"{self.where}, Python {self.python}", *self.commands, *self.files.values()])


def documents() -> Iterator[Path]:
    yield from sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "ansible").rglob("*.md")])


def in_document(name: str, text: str) -> Iterator[PrintedLines]:
    """Yield the lines of each block of code together, and those inside of sentences one by one."""
    for number, part in enumerate(re.split(r"^```.*$", text, flags=re.MULTILINE)):
        if number % 2:
            commands = tuple(
                line for line in part.splitlines() if PIP.search(line) or ENVIRONMENT.match(line)
            )
            if any(map(PIP.search, commands)):
                yield PrintedLines(name, commands)
        else:
            for code in INLINE.findall(part):
                if NAMES_A_PACKAGE.search(code):
                    yield PrintedLines(name, (code,))


def in_sentences(name: str, text: str, installed: bool) -> Iterator[PrintedLines]:
    """Yield the lines of a comment or a message, one by one."""
    for match in LINE.finditer(text):
        if NAMES_A_PACKAGE.search(match[0]):
            yield PrintedLines(name, (match[0],), installed=installed)


def texts_of_code(path: Path) -> Iterator[str]:
    """Yield the strings of a module, with what f-strings insert as {}; without docstrings."""
    tree = ast.parse(path.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def extras_of_code(path: Path) -> Iterator[str]:
    """Yield the optional parts that a module's messages advise to install; {} if code computes them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == pip_install.__name__
        ):
            (extra,) = node.args
            yield str(extra.value) if isinstance(extra, ast.Constant) else "{}"


def modules() -> Iterator[tuple[str, Path]]:
    """Yield the modules whose source mentions pip. To parse the others takes seconds; they have no lines."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        if "pip" in path.read_text():
            yield str(path.relative_to(ROOT)), path


@cache
def found() -> tuple[PrintedLines, ...]:
    """Return all lines that stand in files, each sequence of commands once, without those run elsewhere."""
    lines: list[PrintedLines] = []
    for path in documents():
        if path == OF_A_RELEASE:
            continue
        lines += in_document(str(path.relative_to(ROOT)), path.read_text())
    for pattern in TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            lines += in_sentences(str(path.relative_to(ROOT)), path.read_text(), installed=False)
    for name, path in modules():
        for text in () if name in PRODUCERS else texts_of_code(path):
            lines += in_sentences(name, text, installed=True)
        for extra in extras_of_code(path):
            lines.append(PrintedLines(name, (pip_install(extra),), installed=True))
    return tuple({each.commands: each for each in lines}.values())
