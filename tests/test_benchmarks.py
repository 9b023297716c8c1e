"""Benchmarks are started by hand: each imports at every commit, and says what it is for and what it takes."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bench.records.trial import OutOfMemory
from tests.report.made import H100, START, bundle

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "benchmarks").glob("*.py"))
STARTED = 'if __name__ == "__main__":'
SCRIPTS = [path for path in FILES if STARTED in path.read_text()]
GPU_SCRIPTS = [path for path in sorted((ROOT / "benchmarks/gpu").glob("*.py")) if STARTED in path.read_text()]


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_benchmark_imports(name: str) -> None:
    import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_answers_help_with_its_purpose_and_arguments(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {script.name} ")
    purpose = ast.get_docstring(ast.parse(script.read_text()))
    assert purpose is not None
    assert purpose in shown


@pytest.mark.parametrize("script", [*SCRIPTS, *GPU_SCRIPTS], ids=lambda path: path.stem)
def test_the_arguments_of_a_script_are_declared_to_its_parser(script: Path) -> None:
    text = script.read_text()
    assert "ArgumentParser(" in text
    assert "sys.argv" not in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_that_imports_this_tree_finds_it_from_any_folder(script: Path) -> None:
    """Only bench is installed; `tests` and `benchmarks` are found beside the script."""
    text = script.read_text()
    first = re.search(r"^from (tests|benchmarks)\b", text, re.MULTILINE)
    if first is not None:
        assert "sys.path.insert(0, str(Path(__file__).parents[1]))" in text[: first.start()]


def test_spreads_of_bundles_without_a_measured_setting_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle(tmp_path / "without-result.tar", settings=[((), OutOfMemory("gpu", "no room"))])
    monkeypatch.setattr(sys, "argv", ["spreads.py", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        import_module("benchmarks.spreads").main()
    assert ended.value.code == 2
    assert "no measured setting on a GPU" in capsys.readouterr().err


def test_a_replay_keeps_trials_of_different_cards_apart(tmp_path: Path) -> None:
    """A trial is replaced by a later one of the same model on the same kind and number of GPUs alone."""
    bundle(tmp_path / "first.tar", run_id="aaaa", uuid="A", pass_seconds=0.5)
    bundle(tmp_path / "again.tar", run_id="bbbb", uuid="B", pass_seconds=0.4, started=START + 60)
    bundle(tmp_path / "other.tar", run_id="cccc", uuid="C", pass_seconds=0.3, gpu="NVIDIA H200")
    found = import_module("benchmarks.replay").worlds([tmp_path])
    assert sorted(found) == [("tiny-gpt-neox", H100, 1), ("tiny-gpt-neox", "NVIDIA H200", 1)]
    seconds = {
        card: {step.seconds / step.accumulation for step in measured.measurement.steps}
        for (_, card, _), world in found.items()
        for measured in world.outcomes.values()
    }
    assert min(seconds[H100]) == pytest.approx(0.4 * 0.99, rel=0.01)
    assert min(seconds["NVIDIA H200"]) == pytest.approx(0.3 * 0.99, rel=0.01)
