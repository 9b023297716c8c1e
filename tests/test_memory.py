"""Predicted device memory, held against the peaks of the measured bundles in results/: within 15%."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.memory import predict_bytes, state_bytes
from bench.methods import memory_saving_settings
from bench.models import Parts
from bench.models.paper_code import find_model
from bench.report.bundles import check_all, results_of
from bench.summary import TrialResult
from bench.verify import Verdict

RESULTS = Path(__file__).parents[1] / "results"
# Large: of a model of one billion ZeRO-3 holds more than ZeRO-2, measured too, because of what it gathers.
PARTS = Parts(outside=1_000_000_000, blocks=(500_000_000,) * 20)


def measured() -> list[tuple[str, TrialResult]]:
    return [
        (f"{path.parent.name}/{path.stem} {trial.label} {trial.micro_batch}", trial)
        for path, verdict in check_all([RESULTS], None)
        if isinstance(verdict, Verdict)
        for trial in results_of(verdict).trials
        if trial.estimate
    ]


def test_every_committed_bundle_verifies() -> None:
    assert [verdict for _, verdict in check_all([RESULTS], None) if not isinstance(verdict, Verdict)] == []


@pytest.mark.parametrize(("where", "trial"), [pytest.param(*pair, id=pair[0]) for pair in measured()])
def test_predictions_are_within_15_percent_of_the_measured_peak(where: str, trial: TrialResult) -> None:
    predicted = predict_bytes(find_model(trial.model), trial.setting, trial.micro_batch, trial.gpus)
    assert trial.estimate is not None
    assert predicted == pytest.approx(trial.estimate.peak_bytes, rel=0.15)


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
