"""The rates of a card that a prediction divides by: products of matrices, memory, exchange between GPUs.

A card whose products were measured somewhere has that rate; of another one, the vendor's peak times the share
that cards of the catalogue reach at the median. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from bench.base.gpu_catalogue import GPUS_A_NODE, GpuModel, gpu_models
from bench.training.models import Precision

# Measured beside each other by every run of results/ on H100 and H200: products in fp16 draw more power than
# those in bf16, and products in TF32 reach more than half of the rate of bf16.
SHARE_OF_BF16: Mapping[Precision, float] = {"fp16": 0.96, "fp32": 1.04}
COPY_SHARE = 0.88  # of the vendor's bandwidth, that copies reach on H100 and on H200
# Additions in fp32 that a multiprocessor does in a cycle, by compute capability; of others, FP32_LANES.
FP32_LANES = 128
FEWER_LANES = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}
PCIE_GB_PER_SECOND = 64.0  # both directions of 16 lanes of the fourth generation
LINK_SHARE = 0.7  # of a link's rate in one direction, that exchanges of large messages reach
ADAPTER_GB_PER_SECOND = 100.0  # both directions of the network adapter of each GPU: 400 Gb/s each way
# Latency in seconds of a step of a ring, within a node and between nodes: NCCL's own estimates for its
# protocol Simple (src/graph/tuning.cc).
HOP_SECONDS, NODE_HOP_SECONDS = 3.4e-6, 14e-6


@dataclass(frozen=True, slots=True)
class CardRates:
    """The rates of one card: operations and bytes a second."""

    gpu: GpuModel
    product_share: float  # of the vendor's peak
    product_source: str

    def products(self, precision: Precision) -> float:
        """Return operations a second of large products; those of fp32 recipes multiply in TF32."""
        peak = self.gpu.tf32_tflops if precision == "fp32" else self.gpu.bf16_tflops
        return peak * 1e12 * self.product_share * SHARE_OF_BF16.get(precision, 1.0)

    @property
    def memory(self) -> float:
        """Bytes a second that copies in the card's own memory reach."""
        return self.gpu.memory_gb_per_second * 1e9 * COPY_SHARE

    @property
    def cycles(self) -> float:
        """Cycles a second of all multiprocessors together."""
        lanes = FEWER_LANES.get(self.gpu.compute_capability or "", FP32_LANES)
        return self.gpu.fp32_tflops * 1e12 / (2 * lanes)

    def exchange(self, gpus: int) -> float:
        """Return the bytes a second that each of `gpus` GPUs sends to the next one in its rings.

        The rings of a node leave it by different adapters: together they have the rate of all of them.
        """
        link = self.gpu.link_gb_per_second or PCIE_GB_PER_SECOND
        if gpus > GPUS_A_NODE:
            link = min(link, GPUS_A_NODE * ADAPTER_GB_PER_SECOND)
        return link / 2 * 1e9 * LINK_SHARE


def ring_seconds(gpus: int) -> float:
    """Return how long a message without bytes takes through a ring of `gpus` GPUs."""
    nodes = math.ceil(gpus / GPUS_A_NODE)
    return (gpus - nodes) * HOP_SECONDS + (nodes - 1) * NODE_HOP_SECONDS


def rates_of(gpu: GpuModel) -> CardRates:
    """Return the rates of a card: from measured products, or from the vendor's peak."""
    if gpu.measured_bf16_tflops:
        share = gpu.measured_bf16_tflops / gpu.bf16_tflops
        return CardRates(gpu, share, "measured products of matrices")
    share = usual_share()
    return CardRates(gpu, share, f"{share:.0%} of the vendor's peak, the median of measured cards")


@cache
def usual_share() -> float:
    """Return the median share of the vendor's peak that measured cards reach."""
    return statistics.median(
        gpu.measured_bf16_tflops / gpu.bf16_tflops for gpu in gpu_models() if gpu.measured_bf16_tflops
    )
