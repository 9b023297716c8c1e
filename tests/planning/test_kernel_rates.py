"""Rates of kernels are those that their evidence gives."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from bench.base.gpu_catalogue import gpu_named
from bench.bundle.verdict import RunContents
from bench.bundle.verify import Verdict
from bench.planning.prediction.card_rates import CardRates, rates_of
from bench.planning.prediction.kernel_rates import (
    ATTENTION_IN_FP32,
    CHUNKED_SCAN_CYCLES,
    CYCLES_BY_WEIGHTS,
    DENSE_CONVOLUTIONS,
    DEPTHWISE_CYCLES,
    DepthwiseKernel,
    depthwise_cycles,
)
from bench.records.floor import Floor
from bench.report.read_bundles import check_all
from bench.training.models import Counted, family_of
from bench.training.models.generic import TransformersFamily, counted_work

ROOT = Path(__file__).parents[2]
DEPTHWISE = ROOT / "results" / "frontier-h100" / "depthwise.txt"
OPERATIONS = ROOT / "docs" / "evidence" / "operations-h200" / "operations.txt"
KERNELS = ROOT / "results/attention-h200/kernels.jsonl"
SAMPLES = 64  # of each call that depthwise.txt timed: its bytes a second give it


def rates(name: str) -> CardRates:
    gpu = gpu_named(name)
    assert gpu is not None
    return rates_of(gpu)


def timed(kernel: DepthwiseKernel, precision: str) -> Iterator[tuple[int, float]]:
    """Yield the elements and the seconds of each call that was timed on an H100."""
    column = {"cudnn": "torch", "bench": "bench"}[kernel]
    line = rf"^{precision}\s+(\d+) x (\d+)x\d+ .*\b{column}\s+([\d.]+) us"
    for channels, side, microseconds in re.findall(line, DEPTHWISE.read_text(), re.MULTILINE):
        yield SAMPLES * int(channels) * int(side) ** 2, float(microseconds) * 1e-6


def test_each_kernel_has_a_time_in_each_precision() -> None:
    assert set(DEPTHWISE_CYCLES) == set(itertools.product(("bench", "cudnn"), (False, True)))


@pytest.mark.parametrize(("kernel", "fp32"), DEPTHWISE_CYCLES)
def test_a_depthwise_convolution_takes_what_was_timed(kernel: DepthwiseKernel, fp32: bool) -> None:
    seconds: dict[int, float] = {}
    for elements, spent in timed(kernel, "float32" if fp32 else "bfloat16"):
        seconds[elements] = seconds.get(elements, 0.0) + spent  # forwards, and both gradients
    assert len(seconds) == 4  # ConvNeXt's stages
    cycles = rates("NVIDIA H100 80GB HBM3").cycles
    each = [math.log(spent * cycles / elements) for elements, spent in seconds.items()]
    assert math.exp(sum(each) / 4) == pytest.approx(DEPTHWISE_CYCLES[kernel, fp32], rel=0.01)


@cache
def floor_of(name: str) -> tuple[Floor, Counted, int]:
    """Return the floor that a bundle of one H200 measured, its model's counts, and its micro-batch."""
    ((_, verdict),) = check_all([ROOT / f"results/zoo-h200/{name}.tar"], None)
    assert isinstance(verdict, Verdict) and isinstance(verdict.contents, RunContents)
    results = verdict.contents.results
    trial = next(each for each in results.trials if each.floor)
    family = family_of(results.models[0])
    assert isinstance(family, TransformersFamily) and trial.floor
    return trial.floor, counted_work(results.models[0], family), trial.micro_batch


@pytest.mark.parametrize(("name", "weights"), [("granite-h-1b", 4), ("jamba-1.4b", 4), ("segformer-b5", 9)])
def test_a_small_filter_takes_what_a_floor_took(name: str, weights: int) -> None:
    floor, counts, samples = floor_of(name)
    shapes, h200 = counts.shapes, rates("NVIDIA H200")
    assert shapes.depthwise_operations == 2 * weights * shapes.depthwise_elements
    dense = 3 * samples * (counts.flops.convolution - shapes.depthwise_operations)
    seconds = floor.convolutions_seconds - dense / (h200.products("bf16") * DENSE_CONVOLUTIONS)
    cycles = seconds * h200.cycles / (samples * shapes.depthwise_elements)
    assert cycles == pytest.approx(dict(CYCLES_BY_WEIGHTS)[weights], rel=0.07)


def test_cycles_of_a_filter_rise_with_its_weights_to_those_of_seven_by_seven() -> None:
    def cycles(weights: float, kernel: DepthwiseKernel = "cudnn", *, fp32: bool = False) -> float:
        return depthwise_cycles(kernel, fp32=fp32, weights=weights)

    assert [cycles(weights) for weights in (0, 4, 9, 29, 49, 81)] == pytest.approx(
        [1.7, 1.7, 3.3, (3.3 + 9.0) / 2, 9.0, 9.0]
    )
    for kernel, fp32 in DEPTHWISE_CYCLES:
        assert cycles(49, kernel, fp32=fp32) == DEPTHWISE_CYCLES[kernel, fp32]
    assert cycles(9, fp32=True) / cycles(49, fp32=True) == pytest.approx(3.3 / 9.0)


def test_a_scan_of_mamba_2_takes_what_a_floor_took() -> None:
    floor, counts, samples = floor_of("granite-h-1b")
    cycles = floor.scans_seconds * rates("NVIDIA H200").cycles / (samples * counts.shapes.scanned_states)
    assert cycles == pytest.approx(CHUNKED_SCAN_CYCLES, rel=0.03)


def test_dense_convolutions_take_what_convnext_has_of_them() -> None:
    """ConvNeXt has three convolutions of two by two, and one of four by four with an eighth of their work."""

    def rate(shape: str) -> float:
        """Return operations a second: forwards, and twice that number backwards."""
        line = re.search(rf"^conv bf16 last0 {shape} fwd ([\d.]+) .*TFLOP/s ([\d.]+) ([\d.]+) ms", text, re.M)
        assert line is not None
        tflops, forward, backward = map(float, line.groups())
        return tflops * 1e12 * 3 * forward / (forward + backward)

    text = OPERATIONS.read_text()
    downsampling, patches = rate("256 512 56 k2"), rate("3 192 224 k4")
    together = 3.125 / (3 / downsampling + 0.125 / patches)
    assert together / rates("NVIDIA H200").products("bf16") == pytest.approx(DENSE_CONVOLUTIONS, rel=0.15)


def test_attention_in_fp32_is_slower_than_products_in_tf32() -> None:
    """FlexAttention multiplies in TF32; the vendor's peak of fp32 is an eighth of that of TF32."""
    lines = [json.loads(line) for line in KERNELS.read_text().splitlines()]
    ms = {one["kernel"]: one["forward"] + one["backward"] for one in lines if one["shape"] == "256,197,16,64"}
    plain, flex, own = (ATTENTION_IN_FP32[name] for name in (None, "flex-attention", "full-attention"))
    assert plain < 1 / 8
    assert pytest.approx(2.08, rel=0.01) == flex / plain
    assert own / flex == pytest.approx(ms["flex"] / ms["bench"], rel=0.01)
