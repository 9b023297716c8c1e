"""`bench compare --estimate` multiplies a measured row by the ratio of two predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.base.gpu_catalogue import gpu_named
from bench.cli.main import main
from bench.planning.prediction.predicted_machines import Predicted, Predictor
from bench.planning.prediction.step_time import shipped_fit
from bench.records.spread import shipped_spreads
from bench.report.compare.predicted_estimate import TO_SIGMA, predicted_estimate
from bench.training.models import counts_by_formula
from tests.report.made import bundle, manifest

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
PROOFS = Path(__file__).parents[2] / "results" / "proof-h200"


def compared(capsys: pytest.CaptureFixture[str], model: str, *machines: str) -> dict[str, Any]:
    options = [word for machine in machines for word in ("--estimate", machine)]
    assert main(["compare", str(PROOFS / f"{model}.tar"), "--json", *options]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"]
    found: dict[str, Any] = part
    return found


def test_gpus_lose_time_to_each_other_and_cards_differ_by_their_rates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = compared(capsys, "pythia-1b", "h100", "8xh200", "a100-80gb")
    measured = part["entries"][0]["row"]["best"]["days"]["value"]
    h100, eight, a100 = part["guesses"]
    assert all(one["low_days"] < one["days"] < one["high_days"] for one in part["guesses"])
    assert "1x H200 times the predicted ratio" in h100["basis"]
    assert h100["days"] == pytest.approx(measured, rel=0.15)  # the same products, slower memory
    assert measured / 9 < eight["days"] < measured / 7  # with half-weights, which was not measured
    assert 1.9 * measured < a100["days"] < 3.2 * measured


def test_a_row_with_a_method_of_another_version_gives_no_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger who signs a row with an unknown method must not end the comparison of all others."""
    asked = manifest(models=["pythia-160m"])
    strange = bundle(
        tmp_path / "a.tar", of=asked, settings=[(("compile-blocks", "warp-drive"), 0.5)], version="9.9.9"
    )
    estimate = ("--estimate", "8xh100", "--json")
    for others, guesses in (([], 0), ([PROOFS / "pythia-160m.tar"], 1)):
        assert main(["compare", str(strange), *map(str, others), *estimate]) == 0
        parts = json.loads(capsys.readouterr().out)["parts"]
        assert len([one for part in parts for one in part["guesses"] if "predicted" in one]) == guesses


def test_a_row_that_cannot_be_predicted_leaves_the_estimate_to_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle of a later version has methods that this one lacks, and is nearest to the wanted machine."""
    from bench.report.compare import comparison, predicted_estimate

    real = predicted_estimate.predicted_estimate

    def beside_a_strangers_row(gpu: Any, gpus: int, at_peak_days: float, rows: list[Any]) -> Any:
        unknown = [replace(row.best, setting=(*row.best.setting, "warp-drive")) for row in rows]
        strangers = [replace(row, best=best) for row, best in zip(rows, unknown, strict=True)]
        assert real(gpu, gpus, at_peak_days, strangers) is None
        return real(gpu, gpus, at_peak_days, [*strangers, *rows])

    expected = compared(capsys, "pythia-1b", "8xh200")["guesses"]
    monkeypatch.setattr(comparison, "predicted_estimate", beside_a_strangers_row)
    assert compared(capsys, "pythia-1b", "8xh200")["guesses"] == expected


def test_a_model_whose_work_is_not_predicted_keeps_the_share_of_the_peak(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (guess,) = compared(capsys, "mamba-2.8b", "h100")["guesses"]  # measured uncompiled
    assert "of the vendor's peak" in guess["basis"] and "predicted" not in guess


def test_rows_say_nothing_of_the_model_that_a_prediction_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "trained" not in compared(capsys, "pythia-1b")["entries"][0]["row"]


@pytest.mark.parametrize(
    ("gpu", "gpus", "other_setting", "error"),
    [
        (H200, 1, False, shipped_spreads().another_machine / TO_SIGMA),
        (H200, 1, True, shipped_fit().errors["dense"]),
        (H200, 2, False, shipped_fit().gpus_error),
        (H100, 1, False, shipped_fit().card_error),
        (H100, 2, True, shipped_fit().card_error),  # the largest of all
    ],
)
def test_the_largest_error_between_two_machines_counts(
    gpu: str, gpus: int, other_setting: bool, error: float
) -> None:
    """Each applies if the card, the number of GPUs or the setting differs; machines of one kind always do."""
    row = bench.compare(PROOFS / "pythia-1b.tar").runs.parts[0].entries[0].row
    wanted = gpu_named(gpu)
    assert wanted is not None and row.trained is not None
    counts = {row.trained.name: counts_by_formula(row.trained)}
    (there,) = Predictor([row.trained], counts, shipped_fit()).predict(wanted, gpus)
    assert isinstance(there, Predicted)
    setting = there.setting[:-1] if other_setting else there.setting
    row = replace(row, best=replace(row.best, setting=setting))
    found = predicted_estimate(wanted, gpus, 0.01, [row])
    assert found is not None and found.days is not None
    assert found.high_days == pytest.approx(found.days * (1 + error))
    assert found.low_days == pytest.approx(found.days / (1 + error))


def test_a_model_of_the_zoo_is_predicted_from_the_counts_that_ship(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = PROOFS.parent / "zoo-h100" / "t5.tar"
    assert main(["compare", str(path), "--json", "--estimate", "h200"]) == 0
    guesses = [guess for part in json.loads(capsys.readouterr().out)["parts"] for guess in part["guesses"]]
    assert guesses and all(guess["predicted"] for guess in guesses)
