"""Rates of kernels that were timed by themselves, apart from whole steps. Pure.

Times are in cycles of one multiprocessor. Divided by CardRates.cycles they give the seconds on a card,
because the time of these kernels depends on a card's multiprocessors and clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from bench.training.models.model import ConvolutionShape

# Of the rate of large products, where the shapes of convolutions are not known: the convolutions of ConvNeXt
# together, weighted as it has them.
DENSE_CONVOLUTIONS = 0.18
# Dense convolutions by cuDNN, channels outermost, forwards and backwards, one H200
# (docs/evidence/operations-h200). Their share of the rate of large products depends on the narrower side of a
# group, its channels or its filters. In half precision: wav2vec 2.0's positions, Whisper's spectrograms,
# ConvNeXt's first downsampling, wav2vec 2.0's features, ConvNeXt's last downsampling.
SHARE_BY_SIDE = ((48, 0.022), (80, 0.18), (256, 0.29), (512, 0.37), (1024, 0.29))
# Convolutions of pictures and sounds have up to three channels and no use for matrix units: operations in a
# cycle of a multiprocessor, by the numbers that one sum adds. Geometric means over the three precisions:
# wav2vec 2.0's samples, ConvNeXt's patches, ViT's patches.
FEW_CHANNELS = 8
OPERATIONS_BY_SUM = ((10, 17.0), (48, 45.0), (768, 123.0))

# Attention in fp32, of the rate of products in TF32, by the method: PyTorch's own memory-efficient kernels
# multiply in fp32, the others in TF32. Heads of 64, 197 positions, one H200 (results/frontier-h200/
# where-time-goes.txt, docs/evidence/neox-speed-h200/second/families.json; bench's kernels: results/
# attention-h200/kernels.jsonl, compared with FlexAttention's there).
ATTENTION_IN_FP32: Mapping[str | None, float] = {
    "full-attention": 0.139,
    "flex-attention": 0.101,
    None: 0.0485,
}

# Cycles that fused attention takes for each element of its queries, forwards and backwards, beside its
# operations: it reads and writes queries, keys, values and their gradients, and adds up a product of each
# row. Times at 512 and at 2,048 positions give 4.9 (results/frontier-h100/attention-dropout-*.json), those of
# heads of 64 to 256 give 3.9 (docs/evidence/neox-speed-h200/first/attention.json).
QUERY_CYCLES = 4.0

# Cycles for each state of a scan of Mamba 2, forwards and backwards: positions times channels times states of
# one channel. mamba-ssm's kernels with 128 states in half precision, one H200, without the convolution before
# them (the floor of results/zoo-h200/granite-h-1b.tar).
CHUNKED_SCAN_CYCLES = 0.11

DepthwiseKernel = Literal["bench", "cudnn"]
# Cycles for each element that a depthwise convolution of seven by seven writes, forwards and backwards, by
# bench's kernels in Triton or by cuDNN; True is fp32. The geometric mean over ConvNeXt-large's four stages on
# one H100 (results/frontier-h100/depthwise.txt). In fp32, cuDNN spends most of it on the gradient of filters.
DEPTHWISE_CYCLES: Mapping[tuple[DepthwiseKernel, bool], float] = {
    ("bench", False): 4.9,
    ("bench", True): 5.8,
    ("cudnn", False): 9.0,
    ("cudnn", True): 90.6,
}
# Smaller filters take less: cycles by the number of weights that a filter has, in half precision. Four in a
# row by causal-conv1d and three by three by cuDNN, from floors in results/zoo-h200: granite-h-1b.tar,
# jamba-1.4b.tar, and segformer-b5.tar without its dense convolutions. Seven by seven as above.
CYCLES_BY_WEIGHTS = ((4, 1.7), (9, 3.3), (49, 9.0))


def convolution_seconds(
    shape: ConvolutionShape, operations_per_second: float, cycles_per_second: float
) -> float:
    """Return the seconds of dense convolutions of one form; between measured forms, logarithms rise evenly.

    `operations_per_second` is the rate of large products; `cycles_per_second` those of all multiprocessors.
    """
    side = min(shape.channels, shape.filters)
    if side < FEW_CHANNELS:
        rate = between(OPERATIONS_BY_SUM, shape.channels * shape.weights) * cycles_per_second
    else:
        rate = between(SHARE_BY_SIDE, side) * operations_per_second
    return shape.operations / rate


def between(measured: Sequence[tuple[float, float]], size: float) -> float:
    """Return the value of a size, whose logarithm rises evenly with the size's between two measured ones."""
    logarithms = [(math.log(known), math.log(value)) for known, value in measured]
    return math.exp(_evenly_between(logarithms, math.log(size)))


def _evenly_between(measured: Sequence[tuple[float, float]], size: float) -> float:
    """Return the value of a size, which rises evenly between two measured ones.

    A size outside of what was measured has the value of the nearest one.
    """
    (least, value), *larger = measured
    for more, of_more in larger:
        if least < size:
            value += min(1.0, (size - least) / (more - least)) * (of_more - value)
        least = more
    return value


def depthwise_cycles(kernel: DepthwiseKernel, *, fp32: bool, weights: float) -> float:
    """Return the cycles of an element that a filter with this number of weights writes.

    Between the sizes that were measured they rise evenly. In fp32, and by bench's kernels, other sizes than
    seven by seven are assumed to take the same share of its time.
    """
    cycles = _evenly_between(CYCLES_BY_WEIGHTS, weights)
    return DEPTHWISE_CYCLES[kernel, fp32] * cycles / CYCLES_BY_WEIGHTS[-1][1]
