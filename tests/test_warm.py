"""The Python of tests/warm.py runs the code that an ordinary Python would run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.warm import ROOT, quick_python


@pytest.mark.parametrize("where", ["in the working folder", "in PYTHONPATH"])
def test_a_process_runs_bench_of_the_first_place_that_has_it(where: str, tmp_path: Path) -> None:
    program = tmp_path / "other/bench/__main__.py"
    program.parent.mkdir(parents=True)
    (program.parent / "__init__.py").touch()
    program.write_text("import bench; print(bench.__file__)")
    other = program.parents[1]
    folder, path = (other, ROOT) if where == "in the working folder" else (tmp_path, other)
    done = subprocess.run(
        [quick_python(), "-m", "bench"], cwd=folder, env=os.environ | {"PYTHONPATH": str(path)}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(other / "bench/__init__.py")


def test_other_programs_import_bench_by_themselves() -> None:
    """A program may look like another operating system before it imports bench."""
    code = "import sys; print('bench.cli.push' in sys.modules)"
    done = subprocess.run([quick_python(), "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_commands_stay_imported_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, words = tmp_path / "module.py", ["-m", "bench", "status"]
    module.write_text("one = 1\n")
    monkeypatch.setattr(warm, "_COMMANDS", {str(module): warm._stamp(str(module))})
    assert warm._may_keep_commands(words, tmp_path, [str(ROOT)])
    assert warm._may_keep_commands(["-u", *words], ROOT, [])
    module.write_text("one = 10\n")
    assert not warm._may_keep_commands(words, tmp_path, [str(ROOT)])
    module.unlink()
    assert not warm._may_keep_commands(words, tmp_path, [str(ROOT)])


def test_the_first_call_of_each_command_is_by_an_ordinary_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_BEGUN", set())
    ordinary, quick = warm.sys.executable, quick_python()
    assert [warm.python_for(word) for word in ("push", "push", "verify")] == [ordinary, quick, ordinary]
