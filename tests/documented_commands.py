"""The commands that the documents and the help of `bench` tell their reader to type, in their order.

Every line is typed by a test: on its page by tests/e2e/test_documented_pages.py, unless another test types it
and names it by `printed`. A line that a test no longer names is therefore typed on its page.

`python -m tests.documented_commands` counts them by the tests that type them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from bench.cli.examples import EXAMPLES
from bench.cli.main import parser
from tests.pip_lines.printed_lines import ENVIRONMENT, PIP
from tests.readme_tasks import README, tasks
from website.sources import ROOT, documents, fences

CI = ".ci/run"
MODULE = "tests.documented_commands"  # whose __name__ is another one when it runs as a program
PAGES = "tests/e2e/test_documented_pages.py"
HELP = "bench --help"  # the page of the examples in the help of all commands
# A line of a prompt, or of a crontab, has its command behind this.
BEFORE = re.compile(r"^\s*(?:\w+\$ +|(?:[\d*/,-]+ +){5})")
SYNOPSIS = re.compile(r" \[-| \[[A-Z]+\]|\]\.\.\.|^ +\[")
# Lines that tests/test_pip_lines.py and tests/e2e/test_pip_lines.py install.
OF_PIP = re.compile(rf"{PIP.pattern}|{ENVIRONMENT.pattern}|^pip download ")


@dataclass(frozen=True, slots=True)
class DocumentedCommand:
    """A line that a reader types: where it stands, and its text without the remark behind it."""

    document: str
    line: str

    @property
    def is_of_bench(self) -> bool:
        return self.line.startswith("bench ")

    @property
    def typed_by(self) -> str | None:
        """The test that types this line, if it is another one than that of its page."""
        if OF_PIP.search(self.line):
            return "tests/test_pip_lines.py"
        if self.document == README.name and any(self.line in task.commands for task in tasks()):
            return "tests/e2e/test_readme_tasks.py"
        return TYPED_ELSEWHERE.get(self.document) or lines_of_others().get(self.line)

    @property
    def is_of_its_page(self) -> bool:
        """Whether tests/e2e/test_documented_pages.py types this line."""
        return not self.typed_by

    def __str__(self) -> str:
        return f"{self.document}: {self.line}"


def typed(document: str) -> Iterator[DocumentedCommand]:
    """Yield the lines of a document that a reader types."""
    for language, body in fences((ROOT / document).read_text(encoding="utf-8")):
        if language not in ("sh", "text"):
            continue
        for whole in joined(body):
            line = without_remark(BEFORE.sub("", whole))
            is_ours = line.startswith("bench ") and line.split()[1] in parser().commands
            if line and not SYNOPSIS.search(line) and (is_ours or language == "sh"):
                yield DocumentedCommand(document, line)


def joined(body: str) -> Iterator[str]:
    """Yield the lines of a block; a line that continues, by a backslash or inside of braces, is joined."""
    group: list[str] = []
    for line in re.sub(r"\\\n\s*", "", body).splitlines():
        group.append(line.strip() if group else line)
        if not group[0].startswith("{ ") or "; }" in line:
            yield "; ".join(group)
            group = []
    yield from group


def without_remark(line: str) -> str:
    return re.sub(r"(^|\s+)#( .*)?$", "", line).strip()


@cache
def commands() -> Mapping[str, tuple[DocumentedCommand, ...]]:
    """Return the commands of each page that has any."""
    found = {document: tuple(typed(document)) for document in documents()}
    examples = dict.fromkeys(line for lines in EXAMPLES.values() for line in lines)
    found[HELP] = tuple(DocumentedCommand(HELP, line) for line in examples)
    return {document: lines for document, lines in found.items() if lines}


def printed(line: str) -> str:
    """Return a line that a document prints, for the test that types it; lines_of_others finds the literal."""
    assert any(each.line == line for lines in commands().values() for each in lines), (
        f"no page prints: {line}"
    )
    return line


@cache
def lines_of_others() -> Mapping[str, str]:
    """Return the lines that tests name by `printed`, and those of CI, each with its file."""
    found = {line.strip(): CI for line in (ROOT / CI).read_text(encoding="utf-8").splitlines()}
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        text = path.read_text(encoding="utf-8")
        if MODULE in text:
            found |= dict.fromkeys(_named(ast.parse(text)), path.relative_to(ROOT).as_posix())
    return found


def _named(module: ast.Module) -> Iterator[str]:
    for call in ast.walk(module):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == printed.__name__
        ):
            (line,) = call.args
            if isinstance(line, ast.Constant):
                yield str(line.value)


# Pages whose commands another test types as printed, in the environment that it makes.
TYPED_ELSEWHERE = {"ansible/README.md": "tests/e2e/test_push_ansible.py"}


def counted() -> str:
    """Return how many lines are typed, and by which tests."""
    by_test = Counter(each.typed_by or PAGES for of_page in commands().values() for each in of_page)
    said = [f"all {by_test.total()} lines are typed"]
    return "\n".join([*said, *(f"{number:5}  {test}" for test, number in by_test.most_common())])


if __name__ == "__main__":
    print(counted())
