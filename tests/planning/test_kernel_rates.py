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
    OPERATIONS_BY_SUM,
    SHARE_BY_SIDE,
    DepthwiseKernel,
    between,
    convolution_seconds,
    depthwise_cycles,
)
from bench.records.floor import Floor
from bench.report.read_bundles import check_all
from bench.training.models import Counted, family_of
from bench.training.models.counted_operations import counted_work
from bench.training.models.generic import TransformersFamily
from bench.training.models.model import ConvolutionShape

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


def convolved(precision: str, shape: str) -> float:
    """Return the operations a second of a convolution that was timed, forwards and backwards."""
    line = re.search(
        rf"^conv\S* {precision} {shape} fwd ([\d.]+) .*TFLOP/s ([\d.]+) ([\d.]+) ms$",
        OPERATIONS.read_text(),
        re.M,
    )
    assert line is not None
    tflops, forward, backward = map(float, line.groups())
    return tflops * 1e12 * 3 * forward / (forward + backward)


@pytest.mark.parametrize(
    ("side", "shape"),
    [
        (48, "768 768 49 k128 g16"),
        (80, "80 768 3000 k3 g1"),
        (256, "last0 256 512 56 k2"),
        (512, "512 512 3199 k3 g1"),
        (1024, "last0 1024 2048 14 k2"),
    ],
)
def test_a_dense_convolution_has_the_rate_of_its_narrower_side(side: int, shape: str) -> None:
    h200 = rates("NVIDIA H200")
    shares = [convolved(precision, shape) / h200.products(precision) for precision in ("bf16", "fp16")]
    assert math.sqrt(math.prod(shares)) == pytest.approx(dict(SHARE_BY_SIDE)[side], rel=0.04)


@pytest.mark.parametrize(
    ("summed", "shape"),
    [(10, "1 512 16000 k10 g1"), (48, "last0 3 192 224 k4"), (768, "last0 3 1024 224 k16")],
)
def test_a_convolution_of_pictures_or_sounds_has_operations_in_a_cycle(summed: int, shape: str) -> None:
    each = [convolved(precision, shape) for precision in ("bf16", "fp16", "tf32")]
    found = math.prod(each) ** (1 / 3) / rates("NVIDIA H200").cycles
    assert found == pytest.approx(dict(OPERATIONS_BY_SUM)[summed], rel=0.02)


def test_a_value_between_two_measured_ones_rises_evenly_in_logarithms() -> None:
    measured = ((10, 1.0), (1000, 100.0))
    assert [between(measured, size) for size in (1, 10, 100, 1000, 9999)] == pytest.approx(
        [1, 1, 10, 100, 100]
    )


def test_a_convolution_with_few_channels_takes_cycles_and_another_one_a_share_of_products() -> None:
    pictures, wide = ConvolutionShape(3, 192, 16, 10**12), ConvolutionShape(256, 512, 4, 10**12)
    grouped = ConvolutionShape(48, 48, 128, 10**12)
    slow, fast = (convolution_seconds(pictures, 1e15, cycles) for cycles in (1e11, 2e11))
    assert slow == pytest.approx(2 * fast) == pytest.approx(1 / (45 * 0.1))
    assert convolution_seconds(wide, 1e15, 1e11) == pytest.approx(1 / (0.29 * 1000))
    assert convolution_seconds(grouped, 1e15, 1e11) == pytest.approx(1 / (0.022 * 1000))


def test_attention_in_fp32_is_slower_than_products_in_tf32() -> None:
    """FlexAttention multiplies in TF32; the vendor's peak of fp32 is an eighth of that of TF32."""
    lines = [json.loads(line) for line in KERNELS.read_text().splitlines()]
    ms = {one["kernel"]: one["forward"] + one["backward"] for one in lines if one["shape"] == "256,197,16,64"}
    plain, flex, own = (ATTENTION_IN_FP32[name] for name in (None, "flex-attention", "full-attention"))
    assert plain < 1 / 8
    assert pytest.approx(2.08, rel=0.01) == flex / plain
    assert own / flex == pytest.approx(ms["flex"] / ms["bench"], rel=0.01)
