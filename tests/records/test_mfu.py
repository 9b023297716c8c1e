"""MFU in digits: which cards, which precision and how many GPUs the vendor's peak is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.bundle.verify import verify_bundle
from bench.node_check.recompute_any import recompute
from bench.records.mfu import mfu_of
from bench.records.run_results import TrialResult
from bench.records.trial import Gpu, NodeFacts
from tests.report.made import bundle

H100 = "NVIDIA H100 80GB HBM3"


def node(*names: str) -> NodeFacts:
    gpus = tuple(Gpu(number, name, f"GPU-{number}", 1 << 36, "9.0") for number, name in enumerate(names))
    return NodeFacts("EPYC", 64, 1 << 38, "Debian 12", "6.1", "3.11", gpus)


@pytest.fixture
def trial(tmp_path: Path) -> TrialResult:
    """A trial that reaches 98.95 TFLOP/s on all its GPUs together."""
    (found,) = verify_bundle(bundle(tmp_path / "a.tar"), recompute).contents.results.trials
    assert found.estimate is not None
    return replace(found, setting=(), gpus=1, estimate=replace(found.estimate, flops_per_second=98.95e12))


def test_the_peak_is_of_the_precision(trial: TrialResult) -> None:
    assert mfu_of(trial, node(H100), "bf16") == pytest.approx(0.1, abs=1e-4)  # of 989.5 TFLOP/s
    assert mfu_of(trial, node(H100), "fp32") == pytest.approx(98.95 / 67, rel=0.01)
    tf32 = replace(trial, setting=("tf32",))
    assert mfu_of(tf32, node(H100), "fp32") == pytest.approx(98.95 / 494.7, rel=0.01)


def test_the_peak_is_of_all_gpus_that_trained_and_of_no_other(trial: TrialResult) -> None:
    two = replace(trial, gpus=2)
    assert mfu_of(two, node(H100, H100), "bf16") == pytest.approx(0.05, abs=1e-4)
    assert mfu_of(trial, node(H100, "NVIDIA X1"), "bf16") == pytest.approx(0.1, abs=1e-4)


def test_the_slowest_kind_of_card_counts_for_each(trial: TrialResult) -> None:
    two = replace(trial, gpus=2)
    slow = mfu_of(two, node("NVIDIA A100-SXM4-80GB", H100), "bf16")
    assert slow == mfu_of(two, node(H100, "NVIDIA A100-SXM4-80GB"), "bf16")
    assert slow == pytest.approx(98.95 / (2 * 312), rel=0.01)


def test_there_is_none_without_an_estimate_a_gpu_or_a_known_card(trial: TrialResult) -> None:
    assert mfu_of(replace(trial, estimate=None), node(H100), "bf16") is None
    assert mfu_of(trial, node(), "bf16") is None
    assert mfu_of(replace(trial, gpus=2), node(H100, "NVIDIA X1"), "bf16") is None
    assert mfu_of(trial, node("NVIDIA X1"), "bf16") is None
