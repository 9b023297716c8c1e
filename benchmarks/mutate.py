"""Change modules one small step at a time, and see whether their tests notice: `make mutate`.

    python -m benchmarks.mutate [MODULE ...] [--base HEAD~1] [--mutants 40] [--seed 0]
    python -m benchmarks.mutate --first-report [--total 616] [--seed 0] [--calling]

Without modules, those of benchmarks/mutated_modules.py that differ from the base. Tests run in copies of this
tree, two at once, those first that call the changed function. out/mutate keeps the results until the module
or its tests change, so an interrupted run continues. The exit code is 1 if too few changes were noticed, and
2 if the unchanged code fails its tests.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.changed_functions import changed_functions
from benchmarks.forked_tests import Reply, Request, TracedTest
from benchmarks.mutated_modules import FIRST_REPORT, MODULES, Held
from benchmarks.mutations import Mutant, changes, draw

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).parent / "data" / "equivalent_mutants.json"
AT_ONCE = 2
FORKED_TESTS = Path(__file__).with_name("forked_tests.py")
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "dist", "*.egg-info")
HEADERS = ("module", "subject", "mutants", "noticed", "equivalent", "survivors", "share")


class ChangeName(NamedTuple):
    """A change as the file of equivalent changes names it: without line numbers, which move."""

    module: str
    function: str
    change: str


class UnchangedFails(Exception):
    """The tests of a module fail without any change of it."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--first-report", action="store_true", help="the modules of the first report, too")
    parser.add_argument("--base", default="HEAD~1")
    drawn = parser.add_mutually_exclusive_group()
    drawn.add_argument("--mutants", type=int, default=40, help="of each module")
    drawn.add_argument("--total", type=int, help="of all modules, in proportion to their possible changes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="copies of the tree in which tests run")
    parser.add_argument("--calling", action="store_true", help="only tests that call the changed function")
    arguments = parser.parse_args()
    first_report = FIRST_REPORT if arguments.first_report else ()
    names = [*arguments.modules, *first_report] or changed_since(arguments.base)
    if unknown := [name for name in names if name not in MODULES]:
        parser.error(f"not in benchmarks/mutated_modules.py: {', '.join(unknown)}")
    if not names:
        print(f"no module of benchmarks/mutated_modules.py differs from {arguments.base}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # removes the copies, as after ctrl-c
    modules = {name: MODULES[name] for name in names}
    counts = dict.fromkeys(modules, arguments.mutants)
    if arguments.total is not None:
        sizes = {name: sum(1 for _ in changes(ast.parse((ROOT / name).read_text()))) for name in modules}
        counts = in_proportion(arguments.total, sizes)
    return mutate(
        ROOT,
        modules,
        known_equivalents(),
        counts,
        arguments.seed,
        arguments.at_once,
        calling=arguments.calling,
    )


def in_proportion(total: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Share out a number in proportion to sizes; what rounding down leaves goes to the largest rests."""
    whole = sum(sizes.values())
    counts = {name: total * size // whole for name, size in sizes.items()}
    by_rest = sorted(sizes, key=lambda name: total * sizes[name] % whole, reverse=True)
    for name in by_rest[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


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
    root: Path,
    modules: Mapping[str, Held],
    equivalent: Mapping[ChangeName, str],
    counts: Mapping[str, int],
    seed: int,
    at_once: int = AT_ONCE,
    *,
    calling: bool = False,
) -> int:
    """Try mutants of each module, print survivors and a table, and return the exit code.

    With `calling`, a mutant is tried only with the tests that call the changed function.
    """
    with threads(at_once) as pool, copies(root, at_once) as free:
        mutated = [
            MutatedModule(root, name, held, seed, free, equivalent, calling) for name, held in modules.items()
        ]
        unknown = [module for module in mutated if not module.is_known]
        try:
            runs = list(pool.map(lambda tests: run_unchanged(unknown, tests, free), parts(unknown, at_once)))
        except UnchangedFails as error:
            print(error, file=sys.stderr)
            return 2
        for module in unknown:
            module.learn(runs)
        drawn = [(module, mutant) for module in mutated for mutant in module.drawn(counts[module.name])]
        for (module, mutant), ending in zip(drawn, pool.map(_ending, drawn), strict=True):
            if ending == "survived":
                print(f"{module.name}:{mutant.line}: {mutant.change}  ({mutant.function})", flush=True)
    print(tabulate([module.row() for module in mutated], HEADERS, disable_numparse=True))
    return int(any(module.share < module.held.least_share for module in mutated))


@dataclass(frozen=True, slots=True)
class UnchangedRun:
    """Tests that passed without a change: which functions each of them calls, and how long all take."""

    traced: Sequence[TracedTest]
    seconds: Mapping[str, float]  # by test, without the tracer
    beside_seconds: float  # to import and collect them


class MutatedModule:
    """A module, its tests, and the results of its mutants, which a file remembers from run to run."""

    def __init__(
        self,
        root: Path,
        name: str,
        held: Held,
        seed: int,
        free: queue.Queue[Copy],
        equivalent: Mapping[ChangeName, str],
        calling: bool,
    ) -> None:
        self.name, self.held, self._calling = name, held, calling
        self._free, self._equivalent = free, equivalent
        self._source = (root / name).read_text()
        self._seed = f"{seed} {name}"
        self._file = root / "out" / "mutate" / f"{_file_name(name)}-{digest(root, name, held)}-{seed}.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        entries = [json.loads(line) for line in lines]
        self._seconds: float | None = entries[0]["seconds"] if entries else None
        self._traced = [TracedTest(**test) for test in entries[0]["traced"]] if entries else []
        self._noticed: dict[str, bool] = {
            entry["key"]: entry["noticed"]
            for entry in entries[1:]
            if entry["noticed"] or calling or not entry["calling"]
        }
        self._endings: list[str] = []

    @property
    def is_known(self) -> bool:
        """Whether an earlier run tested the module without a change."""
        return self._seconds is not None

    def write_unchanged(self, folder: Path) -> None:
        """Write the module into a copy of the tree as its mutants are written: without comments."""
        write_source(folder / self.name, ast.unparse(ast.parse(self._source)))

    def restore(self, folder: Path) -> None:
        write_source(folder / self.name, self._source)

    def learn(self, runs: Sequence[UnchangedRun]) -> None:
        """Note how long this module's tests take without a change, and which functions each of them calls."""
        traced = [test for run in runs for test in run.traced if file_of(test.name) in self.held.tests]
        mine = [replace(test, calls=[call for call in test.calls if call[0] == self.name]) for test in traced]
        self._traced = [test for test in mine if test.calls]
        taken = [
            took for run in runs for test, took in run.seconds.items() if file_of(test) in self.held.tests
        ]
        seconds = self._seconds = sum(taken) + sum(run.beside_seconds for run in runs)
        self._remember({"seconds": seconds, "traced": [asdict(test) for test in self._traced]})

    def drawn(self, count: int) -> list[Mutant]:
        return draw(self._source, count, self._seed)

    def ending(self, mutant: Mutant) -> str:
        """Return "equivalent", "noticed" (also if it takes too long or does not start) or "survived"."""
        ending = "equivalent"
        if ChangeName(self.name, mutant.function, mutant.change) not in self._equivalent:
            key = hashlib.sha256(mutant.source.encode()).hexdigest()
            if key not in self._noticed:
                assert self._seconds is not None, "without_change comes first"
                reply = self._test(mutant)
                self._noticed[key] = not reply.passed
                found = {
                    "noticed": self._noticed[key], "calling": self._calling, "seconds": reply.seconds
                }  # fmt: skip
                self._remember({"key": key, **found, **_shown(mutant)})
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

    def _test(self, mutant: Mutant) -> Reply:
        """Run the tests in a copy of the tree in which the module is the mutant.

        Those that call the changed function come first: if possible, in a process that has collected them,
        which takes a tenth of the time. Only a failure counts there; all tests then try what it lets pass.
        """
        assert self._seconds is not None, "without_change comes first"
        limit = 10 + 3 * self._seconds
        reach = [test for test in self._traced if [self.name, mutant.function] in test.calls]
        copy = self._free.get()
        try:
            file = copy.folder / self.name
            changed = changed_functions(str(file), self._source, mutant.source) if reach else None
            if changed:
                copy.collect(self.held.tests)
            write_source(file, mutant.source)
            if changed:
                processor_seconds = 10 + round(3 * max(test.seconds for test in reach))
                changes = [asdict(function) for function in changed]
                first = quickest_first(reach)
                asked = Request(self.held.tests, limit, first, (), changes, processor_seconds)
                reply = copy.run_collected(asked)
                if reply.tried and (self._calling or not reply.passed):
                    return reply
            first = quickest_first(reach or self._traced)
            if self._calling and first:
                return copy.run(Request(files_of(first), limit, first, alone=True))
            return copy.run(Request(self.held.tests, limit, first))
        finally:
            self.restore(copy.folder)
            self._free.put(copy)

    def _remember(self, entry: Mapping[str, object]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def parts(modules: Sequence[MutatedModule], count: int) -> Sequence[Sequence[str]]:
    """Share out the test files of modules into parts that can run at once."""
    files = list(dict.fromkeys(test for module in modules for test in module.held.tests))
    return [files[number::count] for number in range(min(count, len(files)))]


def run_unchanged(
    modules: Sequence[MutatedModule], tests: Sequence[str], free: queue.Queue[Copy]
) -> UnchangedRun:
    """Run tests with modules as their mutants are written, but without a change.

    UnchangedFails if they do not pass. They run a second time as they will with mutants: in another order,
    and with libraries that are imported already.
    """
    copy = free.get()
    try:
        for module in modules:
            module.write_unchanged(copy.folder)
        traced = _passed(copy.run(Request(tests, None, traced=[module.name for module in modules]))).traced
        first = quickest_first([test for test in traced if test.calls])
        again = _passed(copy.run(Request(tests, None, first)))
    finally:
        for module in modules:
            module.restore(copy.folder)
        free.put(copy)
    seconds = {test.name: test.seconds for test in again.traced}
    return UnchangedRun(traced, seconds, again.seconds - sum(seconds.values()))


def _passed(reply: Reply) -> Reply:
    if not reply.passed:
        raise UnchangedFails(f"{reply.output}\nThese tests fail without a change of their modules")
    return reply


def file_of(test: str) -> str:
    """Return the file of a test, as pytest names it: before the name of its function."""
    return test.partition("::")[0]


def files_of(tests: Sequence[str]) -> Sequence[str]:
    return list(dict.fromkeys(map(file_of, tests)))


def quickest_first(tests: Sequence[TracedTest]) -> Sequence[str]:
    return [test.name for test in sorted(tests, key=lambda test: test.seconds)]


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


class Copy:
    """A copy of the tree, and the processes that run tests in it, which start when they are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._collected: subprocess.Popen[str] | None = None
        self._collected_tests: Sequence[str] = ()

    def run(self, request: Request) -> Reply:
        """Run tests until one fails, or until the limit has passed."""
        self._process = self._process or self._started()
        return self._reply(self._process, request)

    def collect(self, tests: Sequence[str]) -> None:
        """Start a process that collects tests of the unchanged tree, unless these are collected already."""
        if tests == self._collected_tests:
            return
        self._end(self._collected)
        self._collected, self._collected_tests = self._started(*tests), tests
        assert self._collected.stdout, "a pipe"
        if not self._collected.stdout.readline():
            raise EOFError(f"{', '.join(tests)}: cannot be collected in {self.folder}")

    def run_collected(self, request: Request) -> Reply:
        """Run tests that are collected already, with functions that have other code, until one fails."""
        assert self._collected, "collect comes first"
        return self._reply(self._collected, request)

    def _reply(self, process: subprocess.Popen[str], request: Request) -> Reply:
        assert process.stdin and process.stdout, "both are pipes"
        process.stdin.write(json.dumps(asdict(request)) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise EOFError(f"the process that runs tests in {self.folder} has ended")
        reply: dict[str, Any] = json.loads(line)
        return Reply(**reply | {"traced": [TracedTest(**test) for test in reply["traced"]]})

    def _started(self, *tests: str) -> subprocess.Popen[str]:
        temporary = self.folder.with_name("tmp")
        temporary.mkdir(exist_ok=True)
        environment = os.environ | {
            "PYTHONPATH": str(self.folder), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"
        }  # fmt: skip
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.Popen(
            [sys.executable, FORKED_TESTS, *tests], cwd=self.folder, env=environment, text=True,
            encoding="utf-8", stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def close(self) -> None:
        for process in (self._process, self._collected):
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[str] | None) -> None:
        if process:
            process.terminate()
            process.communicate()


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Provide threads, which begin nothing more after an error or ctrl-c."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def copies(root: Path, count: int) -> Iterator[queue.Queue[Copy]]:
    """Provide copies of the tree, without the files that a build or an earlier run left in it."""
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as folder:
        made = [Copy(Path(folder).resolve() / str(number) / "tree") for number in range(count)]
        free: queue.Queue[Copy] = queue.Queue()
        try:
            for copy in made:
                shutil.copytree(root, copy.folder, ignore=NOT_COPIED)
                free.put(copy)
            yield free
        finally:
            for copy in made:
                copy.close()


def write_source(path: Path, source: str) -> None:
    """Write a module, and remove its bytecode, which Python would use for a file of equal age and size."""
    path.write_text(source)
    for bytecode in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        bytecode.unlink()


if __name__ == "__main__":
    sys.exit(main())
