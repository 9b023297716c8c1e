"""`bench plan` prints a block for each model: likely days, a bound apart from them, a table of 80 columns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.cli.main import main

pytestmark = pytest.mark.usefixtures("plans_once")
HOUR = Path(__file__).parents[2] / "manifests/hour.json"


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("gpus", ["1", "8"])
def test_a_plan_fits_eighty_columns_and_has_a_block_for_each_model(
    gpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan(capsys, str(HOUR), "--gpu", "h200", "--gpus", gpus)
    assert max(map(len, text.splitlines())) <= 80
    blocks = text.split("\n\n")[1:]
    models = [block.partition("\n")[0] for block in blocks if re.search("\n +setting ", block)]
    assert len(set(models)) == len(models) >= 8
    assert len(text.splitlines()) < 130
    assert text.count("\n>   ") == len(models)  # one setting of each is tried first


def test_a_plan_shows_the_settings_that_are_tried_first_and_all_of_them_if_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = plan(capsys, str(HOUR), "--gpu", "h100")
    made = json.loads(plan(capsys, str(HOUR), "--gpu", "h100", "--json"))
    assert "18 settings to try\n" in shown and "10 settings to try, 3 that hardly fit, 5 skipped" in shown
    assert "needs about" not in shown
    every = plan(capsys, str(HOUR), "--gpu", "h100", "--all")
    settings = every.split("\nskipped")[0].count(" GiB\n")
    assert settings == len(made["cells"]) == 148
    assert every.count("skipped  pythia-6.9b") == len(made["skipped"]) == 5
    first = {cell["model"]: cell for cell in reversed(made["cells"])}
    trials = {trial["id"]: cell for cell in made["cells"] for trial in cell["trials"]}
    assert made["tried_first"].keys() == first.keys()
    for model, trial in made["tried_first"].items():
        assert f"\n>   {trials[trial]['label']} " in shown and trials[trial]["model"] == model
    (likely,) = (found for found in made["likely"] if found["model"] == "pythia-6.9b")
    assert likely["days"] is None and "113.8 GiB" in likely["reason"]


def test_a_model_of_which_nothing_can_run_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "m.json"
    asked = {"schema": "bench/manifest/v1", "models": ["pythia-6.9b"], "methods": ["naive", ["tf32"]]}
    manifest.write_text(json.dumps(asked))
    shown = plan(capsys, str(manifest), "--gpu", "h100")
    assert re.search(
        r"\npythia-6.9b\nnothing to measure: needs about .*\(2 of 2 settings\)", shown, re.DOTALL
    )


def test_the_likely_days_stand_before_a_bound_that_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, str(HOUR), "--gpu", "h200")
    (block,) = (block for block in text.split("\n\n") if block.startswith("pythia-160m\n"))
    said = " ".join(block.partition(" setting ")[0].split())
    likely = re.search(r"likely [\d.]+ days \(90%: [\d.]+ to [\d.]+\)", said)
    assert likely and likely.start() < said.index(
        "a bound, no estimate: 3 days if all of it ran at the GPU's peak"
    )


def test_a_machine_that_cannot_be_predicted_has_a_bound_or_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text('{"schema": "bench/manifest/v1", "models": ["tiny-gpt-neox"], "methods": ["naive"]}')
    assert "likely" not in plan(capsys, str(manifest))
