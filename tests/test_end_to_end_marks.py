"""`make test-e2e` and `make test-sweeps` collect only test files in which their mark is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import FIRST, LONG_SECONDS, MARKED, SWEEPS_END, late_files, pytest_runtest_setup

MARKS = tuple(f"mark.{name}" for name in MARKED)


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_is_written_in_the_file_of_its_tests(mark: str) -> None:
    """Tests that got the mark from another module would be collected by no target."""
    modules = [path for path in Path(__file__).parent.rglob("*.py") if not path.name.startswith("test_")]
    assert len(modules) > 20
    assert [path.name for path in modules if mark in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("mark", MARKS)
def test_a_target_looks_for_the_mark(mark: str) -> None:
    makefile = Path(__file__).parents[1] / "Makefile"
    assert mark.replace(".", r"\.") in makefile.read_text(encoding="utf-8")


def test_the_files_that_start_first_have_marked_tests() -> None:
    """A file that was renamed would start last, and run alone at the end."""
    assert len(set(FIRST)) == len(FIRST)
    texts = {name: (Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in FIRST}
    assert [name for name, text in texts.items() if not any(mark in text for mark in MARKS)] == []


def test_no_test_of_a_sweep_begins_when_its_time_is_over(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that takes the rest of the time that CI has would let nothing land."""
    monkeypatch.setenv(SWEEPS_END, "1")
    pytest_runtest_setup(request.node)  # other tests have no such time
    request.node.add_marker(pytest.mark.sweep)
    with pytest.raises(pytest.skip.Exception, match="no time was left"):
        pytest_runtest_setup(request.node)
    monkeypatch.setenv(SWEEPS_END, "99999999999")
    pytest_runtest_setup(request.node)
    monkeypatch.delenv(SWEEPS_END)
    pytest_runtest_setup(request.node)


def test_a_long_file_that_starts_late_is_named_at_the_end_of_a_run() -> None:
    """A file that grew would run alone at the end, and nobody would notice."""
    took = {FIRST[0]: 900.0, "tests/e2e/a.py": LONG_SECONDS, "tests/e2e/b.py": 121.0, "tests/e2e/c.py": 300.4}
    assert late_files(took) == [
        f"tests/e2e/{name}.py took {seconds} s, and started late: name it in FIRST of tests/conftest.py, "
        "or it may run alone at the end"
        for name, seconds in (("c", 300), ("b", 121))
    ]


def test_make_test_need_not_import_the_folder_of_end_to_end_tests() -> None:
    """Each of its files has the mark as a whole, and importing them takes each worker seconds."""
    unmarked = [
        path.name
        for path in (Path(__file__).parent / "e2e").glob("test_*.py")
        if not re.search(
            r"^pytestmark = \[?pytest\.mark\.(e2e|sweep)\b", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert unmarked == []
