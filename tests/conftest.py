"""Settings for all tests: each uses one thread, so that parallel tests do not compete for cores."""

import os
import signal
import sys

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.warm import quick_python

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # xdist sets it for its workers, which have no terminal
settings.register_profile("untimed", deadline=None)  # a busy machine takes its time
settings.load_profile("untimed")
# A shell starts background jobs with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup does the same with SIGHUP

# The slowest files of end-to-end tests, in the order in which they start. All other end-to-end tests come
# later, so that none of these slow files runs alone at the end.
FIRST = (
    "tests/e2e/test_image.py", "tests/runner/test_parallel.py", "tests/e2e/test_push.py",
    "tests/e2e/test_export.py", "tests/training/test_equivalence.py", "tests/e2e/test_push_image.py",
    "tests/runner/test_nodes.py", "tests/training/methods/test_interpreted.py",
    "tests/e2e/test_push_slurm.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("e2e") is None:
            return -1  # other tests keep their order and come first
        file = item.nodeid.partition("::")[0]
        return FIRST.index(file) if file in FIRST else len(FIRST)

    items.sort(key=place)


# Files of end-to-end tests that share what takes long to make; one worker runs them one after the other.
TOGETHER = {"tests/e2e/test_push_image.py": "tests/e2e/test_image.py"}


class ByFile(LoadScopeScheduling):
    """Give a worker all tests of a file, and of the files that TOGETHER names with it."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture
def quick_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python processes that the code under test starts begin with torch imported."""
    monkeypatch.setattr(sys, "executable", quick_python())
