"""Exported scripts import one module of bench with stable names; its parsing, logging and refusals."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest

import bench.export
from bench.base.strict_json import pretty_json, to_json
from bench.export import WITH_BENCH, runtime
from bench.export.runtime import (
    StepLog,
    TrainingOptions,
    latest_step,
    mark_complete,
    parse_options,
    read_trial,
)
from tests.builders import trial

TEMPLATES = Path(bench.export.__file__).parent / "templates"


def promised_names(script: Path) -> set[str]:
    """The names of bench.export.runtime that a script uses; it must import nothing else of bench."""
    tree = ast.parse(script.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(alias.name.partition(".")[0] == "bench" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bench":
            assert (node.module, [alias.name for alias in node.names]) == ("bench.export", ["runtime"])
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "runtime"
    }


def test_scripts_import_bench_through_one_module_and_use_every_name_that_it_promises() -> None:
    used = [promised_names(TEMPLATES / f"{kind}.py") for kind in WITH_BENCH]
    assert all(used)
    assert set().union(*used) == set(runtime.__all__)
    assert all(hasattr(runtime, name) for name in runtime.__all__)


def options(monkeypatch: pytest.MonkeyPatch, *words: str, **defaults: Any) -> TrainingOptions:
    monkeypatch.setattr("sys.argv", ["train.py", *words])
    return parse_options("A script.", trial(), **{"save_every": 1000, **defaults})


def test_options_default_to_the_recipe_and_to_what_the_script_says(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = trial().model.recipe
    plain = options(monkeypatch)
    assert plain == TrainingOptions(recipe.steps, None, False, recipe.log_every_steps or 10, 1000)
    stated = options(monkeypatch, steps=7, log_every=3, save_every=5, out=Path("checkpoints"))
    assert stated == TrainingOptions(7, Path("checkpoints"), False, 3, 5)
    words = "--steps 4 --out c --resume --log-every 2 --save-every 1 --local_rank=0"
    assert options(monkeypatch, *words.split()) == TrainingOptions(4, Path("c"), True, 2, 1)


def test_resume_without_a_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options(monkeypatch, "--resume")
    assert "--resume needs --out" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["latest-step", "latest", "step-2", "checkpoint-7"])
def test_a_new_run_does_not_overwrite_checkpoints(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / name).touch()
    with pytest.raises(SystemExit, match="holds checkpoints: --resume continues"):
        options(monkeypatch, "--out", str(tmp_path))
    assert options(monkeypatch, "--out", str(tmp_path), "--resume").resume


def test_the_last_step_is_saved_and_every_saved_step_is_logged() -> None:
    every = TrainingOptions(last_step=7, out=Path("c"), resume=False, log_every=4, save_every=3)
    assert [step for step in range(1, 8) if every.saves(step)] == [3, 6, 7]
    assert [step for step in range(1, 8) if every.logs(step)] == [3, 4, 6, 7]
    unsaved = TrainingOptions(last_step=7, out=None, resume=False, log_every=4, save_every=3)
    assert [step for step in range(1, 8) if unsaved.logs(step)] == [4, 7]
    assert not unsaved.saves(7)


def test_the_log_is_a_json_line_and_ends_at_a_loss_that_is_not_finite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = StepLog(4, prints=True)
    log.write(6, 2.5)
    StepLog(4, prints=False).write(6, 2.5)
    line = json.loads(capsys.readouterr().out)
    assert (line["step"], line["loss"], log.step) == (6, 2.5, 6)
    assert line["step_seconds"] > 0
    with pytest.raises(SystemExit, match="the loss is nan by step 8"):
        log.write(8, math.nan)
    assert capsys.readouterr().out == ""


def test_the_last_complete_checkpoint_is_the_marked_one(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no complete checkpoint"):
        latest_step(tmp_path)
    mark_complete(tmp_path, 12)
    assert latest_step(tmp_path) == 12


def test_the_trial_beside_a_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "trial.json").write_bytes(pretty_json(to_json(trial())))
    assert read_trial(tmp_path) == trial()


def test_another_number_of_devices_ends_a_script() -> None:
    runtime.check_devices(trial(), 1)
    with pytest.raises(SystemExit, match="measured on 1 device, here are 2"):
        runtime.check_devices(trial(), 2)
