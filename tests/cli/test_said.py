"""Lines that commands say beside their output: counts, what is not shown, limits that nothing keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.cli.main import main

RESULTS = Path(__file__).parents[2] / "results"
PROOF = RESULTS / "proof-h200/pythia-1b.tar"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path


def test_several_machines_in_one_estimate_are_refused_with_what_to_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", str(PROOF), "--estimate", "8xh100,8xh200"]) == 2
    told = "--estimate 8xh100,8xh200: names several machines\n  give --estimate once for each machine\n"
    assert capsys.readouterr().err == told


def test_predictions_say_which_models_no_measured_bundle_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plots = tmp_path / "plots"
    given = ["predict", "pythia-160m", "--gpu", "h100,h200", "--plots", str(plots), "--measured", str(PROOF)]
    assert main(given) == 0
    err = capsys.readouterr().err
    assert "pythia-160m: no bundle of --measured has it\n" in err
    assert f"plots  1 file in {plots}\n" in err


def test_where_nothing_fits_the_fastest_and_the_cheapest_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Within a budget, the fastest machine may have no price, and says nothing of what would be enough."""
    assert main(["predict", "pythia-1b", "--gpu", "8xgb300,h100", "--budget-usd", "5"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"the fastest is 8x GB300: [\d.]+ days, [\d.]+ to [\d.]+; "
        r"the cheapest is 1x H100 80GB HBM3: [\d.]+ days, [\d.]+ to [\d.]+, \$[\d,]+ a run predicted",
        told,
    )
    assert main(["predict", "pythia-1b", "--gpu", "h100", "--budget-usd", "5"]) == 1
    assert "the cheapest" not in capsys.readouterr().out


def test_the_status_of_nothing_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "nothing was pushed from this machine yet\n"
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == []
