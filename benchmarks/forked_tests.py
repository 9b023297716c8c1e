"""Run tests in forks of a process that has imported their libraries, so that no run imports them again.

    python forked_tests.py

The working directory is the tree under test. In: one `Request` on each line, as JSON. Out: one `Reply` on
each line. Each run is a fork with its own process group, which is killed at its end with all that it started.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

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


@dataclass(frozen=True, slots=True)
class Request:
    """Test files to run until a test fails."""

    tests: Sequence[str]
    limit_seconds: float | None  # after which the run is ended, and has not passed
    first: Sequence[str] = ()  # tests that run before the others, in this order
    traced: Sequence[str] = ()  # files of the tree, whose functions the reply lists for each test


@dataclass(frozen=True, slots=True)
class TracedTest:
    """How long a test took, and which functions of the traced files it called in its own process."""

    __test__ = False  # no class of tests, in spite of its name

    name: str
    seconds: float
    calls: Sequence[Sequence[str]]  # file and function


@dataclass(frozen=True, slots=True)
class Reply:
    """How a run of tests ended."""

    passed: bool
    seconds: float
    output: str
    traced: Sequence[TracedTest] = ()


class _Order:
    """Plugin of pytest: the named tests come first."""

    def __init__(self, first: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(first)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._places.get(item.nodeid, len(self._places)))


class _Tracer:
    """Plugin of pytest: notes for each test which functions of some files it calls."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = {str(Path.cwd() / file): file for file in files}
        self._calls: set[tuple[str, str]] = set()
        self.traced: list[TracedTest] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not self._files:
            return (yield)
        self._calls = set()
        start = time.perf_counter()
        threading.settrace(self._note)
        sys.settrace(self._note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            seconds = time.perf_counter() - start
            self.traced.append(TracedTest(item.nodeid, seconds, sorted(self._calls)))

    def _note(self, frame: FrameType, _event: str, _argument: object) -> None:
        if file := self._files.get(frame.f_code.co_filename):
            self._calls.add((file, frame.f_code.co_qualname.replace("<locals>.", "")))


def main() -> None:
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it, instead of the folder of this file
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # ends the fork, too
    for line in sys.stdin:
        print(json.dumps(asdict(_run(Request(**json.loads(line))))), flush=True)


def _run(request: Request) -> Reply:
    """Run tests in a fork, then import what they imported from elsewhere, for the forks that follow."""
    # Not pipes, which processes that outlive a killed fork would keep open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as learnt:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _become_tests(request, output.fileno(), learnt.fileno())
        code = _code_within(child, request.limit_seconds)
        seconds = time.monotonic() - start
        output.seek(0)
        text = output.read().decode(errors="replace")
        learnt.seek(0)
        found = json.loads(learnt.read() or b'{"modules": [], "traced": []}')
    for module in found["modules"]:
        with suppress(Exception), warnings.catch_warnings(action="ignore"):  # its tests will tell
            importlib.import_module(module)
    return Reply(code == 0, seconds, text, [TracedTest(**entry) for entry in found["traced"]])


def _become_tests(request: Request, output: int, learnt: int) -> NoReturn:
    """Run the tests in this process, which ends with pytest's exit code."""
    code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor, replacement in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(replacement, descriptor)
        tracer = _Tracer(request.traced)
        code = pytest.main([*PYTEST, *request.tests], plugins=[_Order(request.first), tracer])
        traced = [asdict(test) for test in tracer.traced]
        with open(learnt, "w", encoding="utf-8") as file:
            json.dump({"modules": _modules_from_elsewhere(), "traced": traced}, file)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _modules_from_elsewhere() -> list[str]:
    """Return the imported modules that are no part of the tree under test, in the order of their import."""
    of_the_tree = {path.name.removesuffix(".py") for path in Path.cwd().iterdir()}
    return [name for name in sys.modules if name.partition(".")[0] not in of_the_tree]


def _code_within(child: int, limit_seconds: float | None) -> int:
    """Wait for a process, kill its group then, or after the limit, and return its exit code."""
    try:
        ended = os.pidfd_open(child)
        select.select([ended], [], [], limit_seconds)
        os.close(ended)
    finally:
        for kill in (os.killpg, os.kill):  # a process that began just now has no group of its own
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
