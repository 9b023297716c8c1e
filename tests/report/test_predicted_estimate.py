"""`bench compare --estimate` multiplies a measured row by the ratio of two predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cli.main import main
from tests.report.made import bundle, manifest

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
    """Whoever signs such a row must not end the comparison of all others."""
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
