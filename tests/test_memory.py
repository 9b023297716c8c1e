"""Predicted device memory, held against the peaks of the measured bundles in results/: within 15%."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.memory import predict_bytes, state_bytes
from bench.methods import memory_saving_settings
from bench.models import Parts
from bench.models.paper_code import find_model
from bench.report.bundles import check_all
from bench.summary import Results
from bench.verify import Verdict

RESULTS = Path(__file__).parents[1] / "results"
# Large: of a model of one billion ZeRO-3 holds more than ZeRO-2, measured too, because of what it gathers.
PARTS = Parts(outside=1_000_000_000, blocks=(500_000_000,) * 20)


def bundles() -> list[Path]:
    return sorted(RESULTS.rglob("*.tar"))


@pytest.mark.parametrize("path", bundles(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_committed_bundle_verifies_and_its_peaks_are_predicted_within_15_percent(path: Path) -> None:
    ((_, verdict),) = check_all([path], None)
    assert isinstance(verdict, Verdict), verdict
    results = verdict.recomputed.get("results")  # None: of a node check
    for trial in results.trials if isinstance(results, Results) else ():
        if trial.estimate:
            predicted = predict_bytes(find_model(trial.model), trial.setting, trial.micro_batch, trial.gpus)
            assert predicted == pytest.approx(trial.estimate.peak_bytes, rel=0.15), trial.label


def test_there_are_committed_bundles() -> None:
    assert len(bundles()) > 30


@pytest.mark.parametrize("half", [True, False])
def test_more_is_divided_from_stage_to_stage_and_less_stays(half: bool) -> None:
    def held(*setting: str) -> int:
        return state_bytes(PARTS, setting, 8, half)

    assert held() > held("zero-1") > held("zero-2") > held("zero-3")
    assert held("fsdp-2") > held("fsdp-3")
    for setting in memory_saving_settings(8):
        if "offload" in setting:
            assert held(*setting) < held(*(name for name in setting if name != "offload"))


def test_one_device_alone_divides_nothing() -> None:
    assert state_bytes(PARTS, ("zero-2",), 1, True) >= state_bytes(PARTS, (), 1, True)
