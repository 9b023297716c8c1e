"""The Python of tests/warm.py runs the code that an ordinary Python would run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.warm import ROOT, quick_python


def printed(code: str, folder: Path, path: Path) -> str:
    """Run code with `path` as PYTHONPATH; return what it prints."""
    done = subprocess.run(
        [quick_python(), "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": str(path)}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_processes_of_this_checkout_begin_with_the_commands_imported(tmp_path: Path) -> None:
    assert printed("import sys; print('bench.cli.push' in sys.modules)", tmp_path, ROOT) == "True"


@pytest.mark.parametrize("where", ["in the working folder", "in PYTHONPATH"])
def test_a_process_imports_bench_from_the_first_place_that_has_it(where: str, tmp_path: Path) -> None:
    other = tmp_path / "other/bench/__init__.py"
    other.parent.mkdir(parents=True)
    other.touch()
    folder, path = (
        (other.parents[1], ROOT) if where == "in the working folder" else (tmp_path, other.parents[1])
    )
    assert printed("import bench; print(bench.__file__)", folder, path) == str(other)


def test_a_changed_file_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "module.py"
    module.write_text("one = 1\n")
    monkeypatch.setattr(warm, "_COMMANDS", {str(module): warm._stamp(str(module))})
    assert warm._has_commands(tmp_path, [str(ROOT)])
    module.write_text("one = 10\n")
    assert not warm._has_commands(tmp_path, [str(ROOT)])
    module.unlink()
    assert not warm._has_commands(tmp_path, [str(ROOT)])


def test_the_first_call_of_each_command_is_by_an_ordinary_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_BEGUN", set())
    ordinary, quick = warm.sys.executable, quick_python()
    assert [warm.python_for(word) for word in ("push", "push", "verify")] == [ordinary, quick, ordinary]
