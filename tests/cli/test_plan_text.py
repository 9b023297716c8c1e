"""`bench plan` prints a block for each model: likely days, a bound apart from them, a table of 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.cli.main import main

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
    models = [block.partition("\n")[0] for block in blocks if "\nsetting " in block]
    assert len(set(models)) == len(models) >= 8


def test_the_likely_days_stand_before_a_bound_that_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, str(HOUR), "--gpu", "h200")
    (block,) = (block for block in text.split("\n\n") if block.startswith("pythia-160m\n"))
    said = " ".join(block.partition("setting ")[0].split())
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
