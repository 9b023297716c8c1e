"""Run tests in forks of a process that has imported what they need, so that no run imports it again.

    python forked_tests.py
    python forked_tests.py TEST_FILE ...

The working directory is the tree under test. In: one `Request` on each line, as JSON. Out: one `Reply` on
each line. Each run is a fork with its own process group, which is killed at its end with all that it started.

Without test files, the process has imported the libraries of tests, and a fork imports the tree under test
and collects its tests. With test files, the process has collected their tests, too, which takes longer than
most tests: a fork gives changed functions their other code. Then the first line of the output is empty, and
comes when the tests are collected.
"""

from __future__ import annotations

import argparse
import base64
import gc
import importlib
import json
import marshal
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, FunctionType
from typing import NoReturn, TextIO

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
    "not slow and not e2e and not sweep",
)


@dataclass(frozen=True, slots=True)
class Request:
    """Test files to run until a test fails."""

    tests: Sequence[str]
    limit_seconds: float | None  # after which the run is ended, and has not passed
    first: Sequence[str] = ()  # tests that run before the others, in this order; alone if collected already
    traced: Sequence[str] = ()  # files of the tree, whose functions the reply lists for each test
    changed: Sequence[Mapping[str, str | int]] = ()  # functions; only for tests that are collected already
    processor_seconds: int = 0  # after which a test that is collected already is ended, and has not passed
    alone: bool = False  # whether only the tests of `first` run; those that are collected already always do


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
    tried: bool = True  # False if the changed functions cannot get other code in this process


class _Order:
    """Plugin of pytest: the named tests come first, or alone."""

    def __init__(self, first: Sequence[str], alone: bool) -> None:
        self._places = {name: place for place, name in enumerate(first)}
        self._alone = alone

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._alone:
            items[:] = [item for item in items if item.nodeid in self._places]
        items.sort(key=lambda item: self._places.get(item.nodeid, len(self._places)))


class _Tracer:
    """Plugin of pytest: notes how long each test takes, and which functions of some files it calls."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = {str(Path.cwd() / file): file for file in files}
        self._calls: set[tuple[str, str]] = set()
        self.traced: list[TracedTest] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._calls = set()
        start = time.perf_counter()
        if self._files:
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


class _Collected:
    """Plugin of pytest: when the tests are collected, forks run some of them for each request."""

    def __init__(self, requests: TextIO, replies: TextIO) -> None:
        self._requests, self._replies = requests, replies
        self._tree = f"{Path.cwd()}/"
        self._called: set[tuple[str, str, int]] = set()
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        self._in_fork = False
        self._processor_seconds = 0
        sys.settrace(self._note)

    def _note(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._tree):
            self._called.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Answer requests; in a fork, return None, which makes pytest run the tests."""
        sys.settrace(None)
        gc.unfreeze()  # the objects of a frozen generation are not listed
        for each in gc.get_objects():
            if type(each) is FunctionType and (code := each.__code__).co_filename.startswith(self._tree):
                place = code.co_filename, code.co_qualname, code.co_firstlineno
                self._functions.setdefault(place, []).append(each)
        gc.freeze()
        print(file=self._replies, flush=True)
        for line in self._requests:
            request = Request(**json.loads(line))
            reply = (
                self._run(request, session) if self._can_change(request) else Reply(False, 0, "", (), False)
            )
            if self._in_fork:
                return None
            print(json.dumps(asdict(reply)), file=self._replies, flush=True)
        return True

    def pytest_runtest_logstart(self) -> None:
        if self._in_fork:
            limit = int(time.process_time()) + self._processor_seconds
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """End a fork before pytest removes what all forks share."""
        if self._in_fork:
            os._exit(exitstatus)

    def _can_change(self, request: Request) -> bool:
        """Tell whether tests would behave as after an import of the changed code."""
        imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        for changed in request.changed:
            place = str(changed["file"]), str(changed["name"]), int(changed["line"])
            codes = {id(function.__code__) for function in self._functions.get(place, ())}
            is_outer = "<locals>" not in place[1]
            if place in self._called or len(codes) > 1 or (is_outer and place[0] in imported and not codes):
                return False
        return bool(request.changed)

    def _run(self, request: Request, session: pytest.Session) -> Reply:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            self._in_fork = True
            self._change(request, session)
            return Reply(False, 0, "")
        code = _code_within(child, request.limit_seconds)
        return Reply(code == 0, time.monotonic() - start, "")

    def _change(self, request: Request, session: pytest.Session) -> None:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._processor_seconds = request.processor_seconds
        for changed in request.changed:
            place = str(changed["file"]), str(changed["name"]), int(changed["line"])
            for function in self._functions.get(place, ()):
                function.__code__ = marshal.loads(base64.b64decode(str(changed["code"])))
        named = {item.nodeid: item for item in session.items}
        session.items = [named[name] for name in request.first if name in named]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("tests", nargs="*", metavar="TEST_FILE", help="files whose tests are collected once")
    tests = parser.parse_args().tests
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it, instead of the folder of this file
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # ends the fork, too
    if tests:
        _run_collected(tests)
        return
    for line in sys.stdin:
        print(json.dumps(asdict(_run(Request(**json.loads(line))))), flush=True)


def _run_collected(tests: Sequence[str]) -> None:
    """Collect tests, then answer requests; what pytest prints is dropped."""
    with (
        os.fdopen(os.dup(0), encoding="utf-8") as requests,
        os.fdopen(os.dup(1), "w", encoding="utf-8") as replies,
        Path(os.devnull).open("r+b") as nothing,
    ):
        for descriptor in range(3):
            os.dup2(nothing.fileno(), descriptor)
        pytest.main([*PYTEST, *tests], plugins=[_Collected(requests, replies)])


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
        code = pytest.main([*PYTEST, *request.tests], plugins=[_Order(request.first, request.alone), tracer])
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
