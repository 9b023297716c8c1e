"""Change modules one small step at a time, and see whether their tests notice: `make mutate`.

    python -m benchmarks.mutate [MODULE ...] [--base HEAD~1] [--mutants 40] [--seed 0]

Without modules, those of benchmarks/mutated_modules.py that differ from the base. Tests run in copies of this
tree, two at once. out/mutate keeps the results until the module or its tests change, so an interrupted run
continues. The exit code is 1 if too few changes were noticed, and 2 if the unchanged code fails its tests.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from benchmarks.mutated_modules import MODULES, Held
from benchmarks.mutations import Mutant, draw

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).parent / "data" / "equivalent_mutants.json"
AT_ONCE = 2
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "dist", "*.egg-info")
HEADERS = ("module", "subject", "mutants", "noticed", "equivalent", "survivors", "share")
PYTEST = (
    "-x",
    "-q",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    "-m",
    "not slow and not e2e",
)


class ChangeName(NamedTuple):
    """A change as the file of equivalent changes names it: without line numbers, which move."""

    module: str
    function: str
    change: str


class Answer(NamedTuple):
    """How a run of tests ended."""

    passed: bool
    seconds: float
    output: str


class UnchangedFails(Exception):
    """The tests of a module fail without any change of it."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--base", default="HEAD~1")
    parser.add_argument("--mutants", type=int, default=40, help="of each module")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = arguments.modules or changed_since(arguments.base)
    if unknown := [name for name in names if name not in MODULES]:
        parser.error(f"not in benchmarks/mutated_modules.py: {', '.join(unknown)}")
    if not names:
        print(f"no module of benchmarks/mutated_modules.py differs from {arguments.base}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # removes the copies, as after ctrl-c
    modules = {name: MODULES[name] for name in names}
    return mutate(ROOT, modules, known_equivalents(), arguments.mutants, arguments.seed)


def changed_since(base: str) -> list[str]:
    """Return the modules of the table that differ from a revision, in the working tree too."""
    command = ["git", "diff", "--name-only", base, "--", *MODULES]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()


def known_equivalents() -> Mapping[ChangeName, str]:
    """Return the changes that no test can notice, each with its reason."""
    entries = json.loads(EQUIVALENT.read_text())
    return {
        ChangeName(entry["module"], entry["function"], entry["change"]): entry["reason"] for entry in entries
    }


def mutate(
    root: Path, modules: Mapping[str, Held], equivalent: Mapping[ChangeName, str], count: int, seed: int
) -> int:
    """Try mutants of each module, print survivors and a table, and return the exit code."""
    with copies(root) as free, ThreadPoolExecutor(AT_ONCE) as pool:
        mutated = [MutatedModule(root, name, held, seed, free, equivalent) for name, held in modules.items()]
        try:
            list(pool.map(MutatedModule.without_change, mutated))
        except UnchangedFails as error:
            print(error, file=sys.stderr)
            return 2
        drawn = [(module, mutant) for module in mutated for mutant in module.drawn(count)]
        for (module, mutant), ending in zip(drawn, pool.map(_ending, drawn), strict=True):
            if ending == "survived":
                print(f"{module.name}:{mutant.line}: {mutant.change}  ({mutant.function})", flush=True)
    print(tabulate([module.row() for module in mutated], HEADERS, disable_numparse=True))
    return int(any(module.share < module.held.least_share for module in mutated))


class MutatedModule:
    """A module, its tests, and the results of its mutants, which a file remembers from run to run."""

    def __init__(
        self,
        root: Path,
        name: str,
        held: Held,
        seed: int,
        free: queue.Queue[Path],
        equivalent: Mapping[ChangeName, str],
    ) -> None:
        self.name, self.held = name, held
        self._free, self._equivalent = free, equivalent
        self._source = (root / name).read_text()
        self._seed = f"{seed} {name}"
        self._file = root / "out" / "mutate" / f"{_file_name(name)}-{digest(root, name, held)}-{seed}.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        entries = [json.loads(line) for line in lines]
        self._seconds: float | None = entries[0]["seconds"] if entries else None
        self._noticed: dict[str, bool] = {entry["key"]: entry["noticed"] for entry in entries[1:]}
        self._endings: list[str] = []

    def without_change(self) -> None:
        """Measure how long the tests take, which limits them later; UnchangedFails if they do not pass."""
        if self._seconds is None:
            answer = self._test(ast.unparse(ast.parse(self._source)), None)
            if not answer.passed:
                raise UnchangedFails(f"{answer.output}\n{self.name}: its tests fail without a change")
            self._seconds = answer.seconds
            self._remember({"seconds": self._seconds})

    def drawn(self, count: int) -> list[Mutant]:
        return draw(self._source, count, self._seed)

    def ending(self, mutant: Mutant) -> str:
        """Return "equivalent", "noticed" (also if it takes too long or does not start) or "survived"."""
        ending = "equivalent"
        if ChangeName(self.name, mutant.function, mutant.change) not in self._equivalent:
            key = hashlib.sha256(mutant.source.encode()).hexdigest()
            if key not in self._noticed:
                assert self._seconds is not None, "without_change comes first"
                answer = self._test(mutant.source, 10 + 3 * self._seconds)
                self._noticed[key] = not answer.passed
                self._remember({"key": key, "noticed": self._noticed[key], **_shown(mutant)})
            ending = "noticed" if self._noticed[key] else "survived"
        self._endings.append(ending)
        return ending

    @property
    def share(self) -> float:
        noticed, survived = self._endings.count("noticed"), self._endings.count("survived")
        return noticed / (noticed + survived) if noticed + survived else 1.0

    def row(self) -> Sequence[object]:
        counts = [self._endings.count(ending) for ending in ("noticed", "equivalent", "survived")]
        return (self.name, self.held.subject, len(self._endings), *counts, f"{self.share:.1%}")

    def _test(self, source: str, limit: float | None) -> Answer:
        """Run the tests in a copy of the tree in which the module has another source."""
        copy = self._free.get()
        path = copy / self.name
        try:
            write_source(path, source)
            return run_tests(copy, self.held.tests, limit)
        finally:
            write_source(path, self._source)
            self._free.put(copy)

    def _remember(self, entry: Mapping[str, object]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _ending(pair: tuple[MutatedModule, Mutant]) -> str:
    module, mutant = pair
    return module.ending(mutant)


def _shown(mutant: Mutant) -> Mapping[str, object]:
    return {"line": mutant.line, "function": mutant.function, "change": mutant.change}


def _file_name(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


def digest(root: Path, module: str, held: Held) -> str:
    """Name the state of a module and of its tests, with the helpers that all tests share."""
    helpers = [path for path in (root / "tests").rglob("*.py") if not path.name.startswith("test_")]
    paths = [root / module, *(root / test for test in held.tests), *sorted(helpers)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


@contextmanager
def copies(root: Path) -> Iterator[queue.Queue[Path]]:
    """Provide copies of the tree, without the files that a build or an earlier run left in it."""
    free: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        for number in range(AT_ONCE):
            copy = Path(folder, str(number), "tree")
            shutil.copytree(root, copy, ignore=NOT_COPIED)
            copy.with_name("tmp").mkdir()
            free.put(copy)
        yield free


def write_source(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode, which Python would use for a file of equal age and size."""
    path.write_text(source)
    for bytecode in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        bytecode.unlink()


def run_tests(copy: Path, tests: Sequence[str], limit: float | None) -> Answer:
    """Run tests in a copy of the tree until one fails, or until the limit in seconds has passed."""
    environment = os.environ | {"PYTHONPATH": str(copy), "TMPDIR": str(copy.with_name("tmp"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.monotonic()
    # Not a pipe, which processes that outlive a killed pytest would keep open.
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "pytest", *PYTEST, *tests]
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Answer(code == 0, time.monotonic() - start, text)


if __name__ == "__main__":
    sys.exit(main())
