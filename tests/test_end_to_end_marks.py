"""`make test-e2e` collects only test files in which the mark of end-to-end tests is written."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import FIRST, LONG_SECONDS, late_files

MARK = "mark.e2e"


def test_the_mark_of_end_to_end_tests_is_written_in_their_own_file() -> None:
    """Tests that got the mark from another module would be collected by no target."""
    modules = [path for path in Path(__file__).parent.rglob("*.py") if not path.name.startswith("test_")]
    assert len(modules) > 20
    assert [path.name for path in modules if MARK in path.read_text(encoding="utf-8")] == []


def test_the_target_looks_for_the_mark() -> None:
    makefile = Path(__file__).parents[1] / "Makefile"
    assert MARK.replace(".", r"\.") in makefile.read_text(encoding="utf-8")


def test_the_files_that_start_first_have_end_to_end_tests() -> None:
    """A file that was renamed would start last, and run alone at the end."""
    assert len(set(FIRST)) == len(FIRST)
    texts = {name: (Path(__file__).parents[1] / name).read_text(encoding="utf-8") for name in FIRST}
    assert [name for name, text in texts.items() if MARK not in text] == []


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
            rf"^pytestmark = \[?pytest\.{MARK}\b", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert unmarked == []
