"""No healthy card that somebody measured is warned about: profiles against published measurements."""

from __future__ import annotations

import pytest

from bench.node_check.judging.judge_figures import shortfall
from bench.node_check.judging.standards import Past, profiles

# zzc0721/torch-performance-test-data, database.md: the best of square products, in TFLOP/s.
PRODUCTS = {
    ("L40S", "matmul-bf16"): (269,), ("L40S", "matmul-fp32"): (46.9,),
    ("RTX A6000", "matmul-fp32"): (23.9,),
    ("RTX 4090", "matmul-fp32"): (46.5, 56.0), ("RTX 4090", "matmul-bf16"): (173.3,),
    ("RTX 4090", "matmul-tf32"): (85.7,),
    ("RTX 3090", "matmul-bf16"): (76.3, 76.7), ("RTX 3090", "matmul-fp16"): (75.5,),
    ("H100 PCIe", "matmul-tf32"): (240,), ("H100 PCIe", "matmul-fp16"): (458,),
    ("H100 PCIe", "matmul-bf16"): (496,), ("H100 PCIe", "soak"): (496,),
    ("A100 PCIe 40 GB", "matmul-tf32"): (97.3,), ("A100 PCIe 40 GB", "matmul-bf16"): (234,),
    ("H100 SXM", "matmul-bf16"): (794.5,),
    ("H200 SXM", "matmul-bf16"): (790,), ("H200 SXM", "matmul-fp16"): (759,),
    ("H200 SXM", "matmul-fp32"): (51.3,),
    ("B200 SXM", "matmul-bf16"): (1696, 1745),
    ("RTX 5090", "matmul-bf16"): (221.7, 242.2), ("RTX 5090", "matmul-tf32"): (122.2,),
    ("RTX 5090", "matmul-fp32"): (64, 70),
    ("RTX PRO 6000 Blackwell Workstation", "matmul-bf16"): (368.4, 418.0),
    ("RTX PRO 6000 Blackwell Workstation", "matmul-fp32"): (74.0,),
    ("A40", "matmul-bf16"): (122.29,), ("A40", "matmul-tf32"): (59.52,), ("A40", "matmul-fp32"): (23.73,),
    ("L4", "matmul-bf16"): (59.4, 70.89), ("L4", "matmul-fp32"): (15.38,), ("L4", "soak"): (59.4,),
}  # fmt: skip
# Copies between host and GPU, in GB/s: what Azure asks since 2024-06-28, nvbandwidth issues 15 and
# 50, and tinygrad/open-gpu-kernel-modules issue 29.
COPIES = {
    "A100 SXM 80 GB": (21.0, 22.8), "A100 SXM 40 GB": (21.0, 22.8), "A100 PCIe 80 GB": (21.0,),
    "H100 SXM": (48.0, 48.9, 55.0), "H100 NVL": (48.0, 48.9),
    "RTX 4090": (23.9, 26.4), "RTX 5090": (56.3,),
}  # fmt: skip
FROM_DEVICE = {**COPIES, "RTX 4090": (26.3, 27.1), "RTX 5090": (57.3,)}
# All-reduce among 8 GPUs, in GB/s: nccl-tests issue 212, nccl issue 1264, and what Azure asks at 8 or 16 GiB.
EXCHANGES = {
    ("A100 SXM 80 GB", "all-reduce RING 8"): (228,), ("A100 SXM 40 GB", "all-reduce RING 8"): (228,),
    ("H100 SXM", "all-reduce RING 8"): (370, 380), ("H200 SXM", "all-reduce RING 8"): (370, 380),
    ("H100 SXM", "all-reduce NVLS 8"): (460, 480), ("H200 SXM", "all-reduce NVLS 8"): (431, 480),
}  # fmt: skip
CASES = [
    *((card, check, value * 1e12) for (card, check), values in PRODUCTS.items() for value in values),
    *((card, "host-to-device", value * 1e9) for card, values in COPIES.items() for value in values),
    *((card, "device-to-host", value * 1e9) for card, values in FROM_DEVICE.items() for value in values),
    *((card, check, value * 1e9) for (card, check), values in EXCHANGES.items() for value in values),
]


@pytest.mark.parametrize(("card", "check", "measured"), CASES)
def test_a_published_measurement_passes(card: str, check: str, measured: float) -> None:
    (profile,) = (one for one in profiles() if one.name == card)
    expected = profile.figures[check]
    assert shortfall(measured, expected.value, expected.warn_percent, expected.fail_percent) == "pass"


def test_no_source_says_what_cards_disprove() -> None:
    """An RTX 3090 reaches 76.7 of its peak of 71 TFLOP/s: it clocks above the data sheet's boost."""
    sources = [figure.source for profile in profiles() for figure in profile.figures.values()]
    assert not [source for source in sources if "no card reaches" in source]


def test_a_gpu_without_earlier_figures_has_none() -> None:
    assert Past(("a",)) == Past(("a",), {}, {})
