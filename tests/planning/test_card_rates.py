"""The rates of a card in digits, and what interruptions add to a run."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest

from bench.base.gpu_catalogue import GpuModel, gpu_models
from bench.planning.prediction.card_rates import CardRates, rates_of, ring_seconds, usual_share
from bench.planning.prediction.interruptions import Interruptions

CARD = GpuModel(
    name="NVIDIA X1", compute_capability="9.0", memory_gib=80.0, bf16_tflops=1000.0, tf32_tflops=500.0,
    fp32_tflops=64.0, memory_gb_per_second=2000.0, source="a page", link_gb_per_second=900.0,
)  # fmt: skip
RATES = CardRates(CARD, 0.8, "measured")


def test_products_reach_their_share_of_the_peak_of_their_precision() -> None:
    assert RATES.products("bf16") == pytest.approx(800e12)
    assert RATES.products("fp16") == pytest.approx(0.96 * 800e12)
    assert RATES.products("fp32") == pytest.approx(1.04 * 400e12)
    assert RATES.products("fp8") == pytest.approx(800e12)


def test_copies_reach_88_percent_of_the_vendors_bandwidth() -> None:
    assert RATES.memory == pytest.approx(0.88 * 2e12)


@pytest.mark.parametrize(
    ("link", "gpus", "gigabytes"),
    [
        (900.0, 2, 0.7 * 450),
        (900.0, 8, 0.7 * 450),
        (900.0, 9, 0.7 * 400),  # eight adapters of 100 GB/s
        (600.0, 16, 0.7 * 300),
        (None, 8, 0.7 * 32),
        (None, 16, 0.7 * 32),
    ],
)
def test_an_exchange_has_one_direction_of_the_slowest_link(
    link: float | None, gpus: int, gigabytes: float
) -> None:
    card = CardRates(replace(CARD, link_gb_per_second=link), 0.8, "")
    assert card.exchange(gpus) == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize(
    ("gpus", "within", "between"), [(1, 0, 0), (2, 1, 0), (8, 7, 0), (9, 7, 1), (16, 14, 1), (24, 21, 2)]
)
def test_a_ring_has_a_hop_for_each_gpu_and_slower_ones_between_nodes(
    gpus: int, within: int, between: int
) -> None:
    assert ring_seconds(gpus) == pytest.approx(within * 3.4e-6 + between * 14e-6)


def test_a_card_has_its_own_measured_rate_or_the_usual_share() -> None:
    measured = rates_of(replace(CARD, measured_bf16_tflops=700.0))
    assert (measured.product_share, measured.product_source) == (0.7, "measured products of matrices")
    unmeasured = rates_of(CARD)
    assert unmeasured.product_share == usual_share()
    percent = round(100 * usual_share())
    assert unmeasured.product_source == f"{percent}% of the vendor's peak, the median of measured cards"


def test_the_usual_share_is_the_median_of_measured_cards() -> None:
    shares = [
        gpu.measured_bf16_tflops / gpu.bf16_tflops
        for gpu in gpu_models()
        if gpu.measured_bf16_tflops is not None
    ]
    assert len(shares) > 3
    assert usual_share() == median(shares)


# --- interruptions --------------------------------------------------------------------------------------


def test_an_interruption_costs_what_was_trained_since_the_checkpoint_and_the_restart() -> None:
    hourly = Interruptions(every_seconds=3600.0, restart_seconds=360.0, save_seconds=720.0)
    # 5 checkpoints an hour; e^0.1 for the restart; e^0.2 - 1 for what is trained again.
    assert hourly.factor(1) == pytest.approx(5 * math.exp(0.1) * (math.exp(0.2) - 1))
    # Two machines are interrupted twice as often: 2.5 checkpoints between interruptions.
    assert hourly.factor(2) == pytest.approx(2.5 * math.exp(0.2) * (math.exp(0.4) - 1))


def test_a_run_that_is_never_interrupted_takes_no_longer() -> None:
    assert Interruptions(1e12, 600.0, 3600.0).factor(1) == pytest.approx(1.0, abs=1e-6)


def test_a_run_that_never_reaches_a_checkpoint_takes_for_ever() -> None:
    assert Interruptions(1.0, 0.0, 1e6).factor(1) == math.inf
    assert Interruptions(1.0, 1e6, 1.0).factor(1) == math.inf
