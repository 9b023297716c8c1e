"""Settings for all tests: each uses one thread, so that parallel tests do not compete for cores."""

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # xdist sets it for its workers, which have no terminal
# A shell starts background jobs with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup does the same with SIGHUP

# The slowest files of end-to-end tests, in the order in which they start. All other end-to-end tests come
# later, so that none of these slow files runs alone at the end.
FIRST = (
    "tests/e2e/test_image.py", "tests/runner/test_parallel.py", "tests/e2e/test_push.py",
    "tests/e2e/test_export.py", "tests/test_equivalence.py", "tests/e2e/test_push_image.py",
    "tests/runner/test_nodes.py", "tests/methods/test_interpreted.py", "tests/e2e/test_push_slurm.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("e2e") is None:
            return -1  # other tests keep their order and come first
        file = item.nodeid.partition("::")[0]
        return FIRST.index(file) if file in FIRST else len(FIRST)

    items.sort(key=place)
